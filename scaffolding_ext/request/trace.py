"""The decisions that a request's controllers and workers took, with the figures behind them."""

from __future__ import annotations

from typing import Any

from scaffolding_ext.request.branch import branch_path
from scaffolding_ext.request.lifetime import Lifetime


class Trace(list[dict[str, Any]]):
    """A request's decisions in order, each a JSON-serialisable dict with `event`, `branch`, `seconds` and its figures.

    A copy is a plain list.

    Args:
        lifetime: Tells the seconds since the request began.
    """

    __slots__ = ("_lifetime",)

    def __init__(self, lifetime: Lifetime) -> None:
        self._lifetime = lifetime

    def record(self, event: str, **figures: Any) -> None:
        """Append a decision with the figures on which it was taken (JSON-serialisable values)."""
        self.append({"event": event, "branch": list(branch_path()), "seconds": self._lifetime.elapsed(), **figures})

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[dict[str, Any]]]]:
        return list, (list(self),)
