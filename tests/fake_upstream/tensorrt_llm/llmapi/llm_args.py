"""What `LLM` takes beside its named arguments; the real ones are pydantic models, which are asked for their fields."""

from types import SimpleNamespace

from tensorrt_llm import HAS_FINISH_REASON, HAS_NEWEST_FIELDS

_BASE = ("model", "tokenizer", "kv_cache_config", "max_batch_size", "max_seq_len", "max_num_tokens")
_COMMON = (
    *_BASE,
    "enable_chunked_prefill",
    "guided_decoding_backend",
    "return_perf_metrics",
    "enable_iter_perf_stats",
    *(("env_overrides",) if HAS_FINISH_REASON else ()),
)
_NEWEST = ("scheduler_config", "reorder_policy_config", "generation_config", "reasoning_parser")


class TorchLlmArgs(SimpleNamespace):
    model_fields = dict.fromkeys((*_COMMON, "disable_overlap_scheduler", *(_NEWEST if HAS_NEWEST_FIELDS else ())))
    backend = "pytorch"


class TrtLlmArgs(SimpleNamespace):
    model_fields = dict.fromkeys((*_COMMON, "gather_generation_logits"))
    backend = None
