"""The trace: what a request decided, event by event."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from scaffolding_ext.request.figures import FIGURES
from scaffolding_ext.request.parts import on_count
from scaffolding_ext.request.seeds import branch_path


class Trace(list[dict[str, Any]]):
    """A request's decisions in order, each a JSON-serialisable dict with `event`, `branch`, `seconds` and its figures.

    A copy is a plain list. Each of the `observers` is called with each decision: progress, figures and spans are
    reduced from the trace. Events of a part that may be dropped are recorded when it counts.
    """

    __slots__ = ("_elapsed", "observers")

    def __init__(self, elapsed: Callable[[], float], *observers: Callable[[Mapping[str, Any]], object]) -> None:
        self._elapsed = elapsed
        self.observers = list(observers)

    def record(self, event: str, **figures: Any) -> None:
        decision = {"event": event, "branch": list(branch_path()), "seconds": self._elapsed(), **figures}
        on_count(functools.partial(self._keep, decision))

    def _keep(self, decision: dict[str, Any]) -> None:
        self.append(decision)
        for observe in self.observers:
            observe(decision)

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """The trace without figures, which are kept and shown as sums."""
        return [event for event in self if event["event"] != FIGURES]

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[dict[str, Any]]]]:
        return list, (list(self),)
