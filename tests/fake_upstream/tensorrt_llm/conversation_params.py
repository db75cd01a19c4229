"""Which conversation a request belongs to; only the newest release asks."""

from dataclasses import dataclass

from tensorrt_llm import HAS_NEWEST_FIELDS

if not HAS_NEWEST_FIELDS:
    raise ModuleNotFoundError("No module named 'tensorrt_llm.conversation_params'")


@dataclass(slots=True, kw_only=True)
class ConversationParams:
    conversation_id: str
