"""Parameters of a request; only the newest release has them here."""

from tensorrt_llm import HAS_NEWEST_FIELDS

if not HAS_NEWEST_FIELDS:
    raise ModuleNotFoundError("No module named 'tensorrt_llm.executor.params'")
