"""Arguments of `LLM`. As in the real one, they are pydantic models that refuse fields they do not know."""

from enum import Enum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tensorrt_llm import HAS_FINISH_REASON, HAS_NEWEST_FIELDS, HAS_SCOPES


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


class WaitingQueuePolicy(str, Enum):
    FCFS = "fcfs"
    PRIORITY = "priority"


class SchedulerConfig(_Strict):
    capacity_scheduler_policy: str = "GUARANTEED_NO_EVICT"
    context_chunking_policy: str | None = None
    dynamic_batch_config: Any = None
    if HAS_SCOPES:
        waiting_queue_policy: WaitingQueuePolicy = WaitingQueuePolicy.FCFS
    if HAS_NEWEST_FIELDS:
        context_scheduling_policy: str = "fcfs"


class KvCacheConfig(_Strict):
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
        use_kv_cache_manager_v2: bool | str = "auto"


class _LlmArgs(_Strict):
    model: Any
    kv_cache_config: KvCacheConfig = Field(default_factory=KvCacheConfig)
    scheduler_config: SchedulerConfig = Field(default_factory=SchedulerConfig)
    max_batch_size: int | None = 2048
    max_seq_len: int | None = None
    max_num_tokens: int | None = 8192
    enable_chunked_prefill: bool = False
    guided_decoding_backend: str | None = None
    reasoning_parser: str | None = None
    return_perf_metrics: bool = False
    enable_iter_perf_stats: bool = False
    if HAS_FINISH_REASON:
        env_overrides: dict[str, str] | None = None


class TorchLlmArgs(_LlmArgs):
    backend: str = "pytorch"
    disable_overlap_scheduler: bool = False
    if HAS_NEWEST_FIELDS:
        generation_config: str | None = None


class TrtLlmArgs(_LlmArgs):
    backend: str | None = None
    gather_generation_logits: bool = False
