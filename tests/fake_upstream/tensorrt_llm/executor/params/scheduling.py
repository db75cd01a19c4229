"""How one request is scheduled."""

from tensorrt_llm._scheduling import SchedulingParams  # noqa: F401
