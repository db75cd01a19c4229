"""The backend of `trtllm-build` engines, which the newest releases do not have any more."""

from tensorrt_llm import HAS_ENGINES

if not HAS_ENGINES:
    raise ModuleNotFoundError("No module named 'tensorrt_llm._tensorrt_engine'")
from tensorrt_llm.llmapi.llm import _TrtLLM as LLM  # noqa: F401
