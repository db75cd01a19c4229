"""How long TensorRT-LLM should keep the KV blocks of branches: priorities from the scores of branches (RKSC)."""

from __future__ import annotations

from typing import Any

_LOWEST, _HIGHEST = 1, 100


def retention_priority(score: float) -> int:
    """Turns a score of blocks, in [0, 1], into TensorRT-LLM's priority from 1 to 100."""
    return _LOWEST + round((_HIGHEST - _LOWEST) * score)


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
        score: The score of the branch's own blocks, in [0, 1].
    """
    token_range = config_class.TokenRangeRetentionConfig
    own = retention_priority(score)
    ranges = [token_range(prefix_len, None, own)]
    if prefix_len:
        ranges.insert(0, token_range(0, prefix_len, _HIGHEST))
    return config_class(token_range_retention_configs=ranges, decode_retention_priority=own)
