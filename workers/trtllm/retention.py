"""How long TensorRT-LLM should keep the KV blocks of branches: priorities from what they are worth (RKSC)."""

from __future__ import annotations

from typing import Any

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.maths.kv_sharing.eviction import block_score
from scaffolding_ext.tasks import BranchTask

_LOWEST, _HIGHEST = 1, 100


def retention_priority(score: float) -> int:
    """The priority of blocks of a score in [0, 1], over TensorRT-LLM's 1 to 100."""
    return _LOWEST + round((_HIGHEST - _LOWEST) * score)


def block_scores(task: BranchTask) -> list[float]:
    """What the blocks of each branch are worth: its score, and how deep it stands in the tree.

    Raises:
        InvalidTaskError: The task's scores are not one a branch, in [0, 1], or its depth is below 1.
    """
    scores = [1.0] * len(task.suffixes) if task.branch_scores is None else task.branch_scores
    if len(scores) != len(task.suffixes) or not all(0 <= score <= 1 for score in scores):
        raise InvalidTaskError(f"branch_scores is {scores!r}; give one a branch ({len(task.suffixes)}), each in [0, 1]")
    if task.depth < 1:
        raise InvalidTaskError(f"depth is {task.depth}; branches stand at 1 or deeper, their prefix at 0")
    return [block_score(score, task.depth) for score in scores]


def lowest_retention(config_class: Any) -> Any:
    """The `KvCacheRetentionConfig` of KV that nobody can reuse.

    Args:
        config_class: TensorRT-LLM's own.
    """
    ranges = [config_class.TokenRangeRetentionConfig(0, None, _LOWEST)]
    return config_class(token_range_retention_configs=ranges, decode_retention_priority=_LOWEST)


def retention_config(config_class: Any, prefix_len: int, score: float) -> Any:
    """The `KvCacheRetentionConfig` of one branch.

    Args:
        config_class: TensorRT-LLM's own.
        prefix_len: Tokens that all branches share.
        score: Of the branch's own blocks, in [0, 1].
    """
    token_range = config_class.TokenRangeRetentionConfig
    own = retention_priority(score)
    ranges = [token_range(prefix_len, None, own)]
    if prefix_len:
        ranges.insert(0, token_range(0, prefix_len, _HIGHEST))
    return config_class(token_range_retention_configs=ranges, decode_retention_priority=own)
