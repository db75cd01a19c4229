"""How one request is scheduled. The releases import it from places of their own."""

from dataclasses import dataclass

from tensorrt_llm import HAS_NEWEST_FIELDS


@dataclass(slots=True, kw_only=True)
class SchedulingParams:
    attention_dp_rank: int | None = None
    attention_dp_relax: bool | None = None
    if HAS_NEWEST_FIELDS:
        attention_dp_relax: bool = True
        agent_hierarchy: list[tuple[str, int]] | None = None
