"""How long TensorRT-LLM should keep the KV blocks of branches: priorities from their scores (RKSC)."""

from __future__ import annotations

from typing import Any

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.tasks import BranchTask

BRANCH_SCORES = "branch_scores"  # key of custom_input_params: a score in [0, 1] for each branch
_LOWEST, _HIGHEST = 1, 100


def retention_priority(score: float, depth: int) -> int:
    """The priority of blocks at a depth of the tree: omega = score / (depth + 1), over TensorRT-LLM's 1 to 100.

    Args:
        score: Of the branch, in [0, 1].
        depth: 0 for the prefix that all share.

    Reference:
        RKSC's eviction order: lowest omega first.
    """
    return _LOWEST + round((_HIGHEST - _LOWEST) * score / (depth + 1))


def branch_scores(task: BranchTask) -> list[float]:
    """The scores that the task brings for its branches; 1 for each where it brings none.

    Raises:
        InvalidTaskError: They are not one a branch, in [0, 1].
    """
    scores = (task.custom_input_params or {}).get(BRANCH_SCORES)
    if scores is None:
        return [1.0] * len(task.suffixes)
    if len(scores) != len(task.suffixes) or not all(0 <= score <= 1 for score in scores):
        raise InvalidTaskError(
            f"{BRANCH_SCORES} is {scores!r}; give one a branch ({len(task.suffixes)}), each in [0, 1]"
        )
    return [float(score) for score in scores]


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
        score: Of the branch, in [0, 1].
    """
    token_range = config_class.TokenRangeRetentionConfig
    own = retention_priority(score, depth=1)
    ranges = [token_range(prefix_len, None, own)]
    if prefix_len:
        ranges.insert(0, token_range(0, prefix_len, retention_priority(1.0, depth=0)))
    return config_class(token_range_retention_configs=ranges, decode_retention_priority=own)
