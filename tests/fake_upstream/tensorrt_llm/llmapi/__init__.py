"""The LLM API's settings."""

import datetime
from dataclasses import dataclass, field

from tensorrt_llm import HAS_NEWEST_FIELDS
from tensorrt_llm._sampling import GuidedDecodingParams, SamplingParams  # noqa: F401

if HAS_NEWEST_FIELDS:
    from tensorrt_llm.executor.params.conversation import ConversationParams  # noqa: F401


@dataclass
class BlockReuseConfig:
    policy: str = "all_reusable"
    max_num_turns: int = 1


@dataclass
class KvCacheConfig:
    enable_block_reuse: bool = True
    max_tokens: int | None = None
    free_gpu_memory_fraction: float | None = 0.9
    host_cache_size: int | None = None
    secondary_offload_min_priority: int | None = None
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    tokens_per_block: int = 32
    dtype: str = "auto"
    if HAS_NEWEST_FIELDS:
        block_reuse_config: BlockReuseConfig = field(default_factory=BlockReuseConfig)
        use_kv_cache_manager_v2: bool | str = "auto"


@dataclass
class _TokenRangeRetentionConfig:
    token_start: int
    token_end: int | None
    priority: int
    duration_ms: datetime.timedelta | None = None


@dataclass
class KvCacheRetentionConfig:
    token_range_retention_configs: list = field(default_factory=list)
    decode_retention_priority: int = 35
    decode_duration_ms: datetime.timedelta | None = None

    TokenRangeRetentionConfig = _TokenRangeRetentionConfig
