"""Sampling parameters of one request."""

from tensorrt_llm._sampling import GuidedDecodingParams, SamplingParams  # noqa: F401
