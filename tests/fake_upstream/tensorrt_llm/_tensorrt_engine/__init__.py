"""The backend of `trtllm-build` engines, which the newest releases do not have any more."""

from tensorrt_llm import HAS_NEWEST_FIELDS

if HAS_NEWEST_FIELDS:
    raise ModuleNotFoundError("No module named 'tensorrt_llm._tensorrt_engine'")
from tensorrt_llm.llmapi.llm import _TrtLLM as LLM  # noqa: F401
