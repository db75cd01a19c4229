"""`SamplingParams` until the newest release moved it."""

from tensorrt_llm import HAS_NEWEST_FIELDS

if HAS_NEWEST_FIELDS:
    raise ModuleNotFoundError("No module named 'tensorrt_llm.sampling_params'")
from tensorrt_llm._sampling import GuidedDecodingParams, SamplingParams  # noqa: F401
