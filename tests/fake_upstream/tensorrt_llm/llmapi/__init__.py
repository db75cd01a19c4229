"""The LLM API's settings."""

import datetime
from dataclasses import dataclass, field

from tensorrt_llm._sampling import GuidedDecodingParams, SamplingParams  # noqa: F401
from tensorrt_llm.llmapi.llm_args import KvCacheConfig, SchedulerConfig  # noqa: F401


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
