"""How one request is sampled."""

from tensorrt_llm._sampling import GuidedDecodingParams, SamplingParams  # noqa: F401
