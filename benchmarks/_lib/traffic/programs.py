"""Programs for the simulated engine: rounds of parallel requests."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from benchmarks._lib.traffic.engine import NEVER
from scaffolding_ext.request.program import StepCounts


class RequestRound(NamedTuple):
    """Requests that a program sends at once.

    The round ends when all of them have ended, or at `until`. Requests that are still running then are stopped.

    Attributes:
        num_tokens: Tokens that each request decodes if it runs to its end; at least one request.
        steps: The program's progress when it sends them.
    """

    num_tokens: tuple[float, ...]
    steps: StepCounts = StepCounts()
    until: float = NEVER


class RoundEnd(NamedTuple):
    """End of a round.

    Attributes:
        ended: Indices of the requests that ran to their end, in the order of their ends.
    """

    now: float
    ended: tuple[int, ...]


Work = Generator[RequestRound, RoundEnd, Any]
"""The work of a program: it yields rounds, is sent the end of each, and returns its answer."""

Program = Callable[[float, float], Work]
"""Begins a program, given its arrival and its deadline in simulated seconds (infinite without one)."""


def fixed_program(*rounds: RequestRound, answer: Any = None) -> Program:

    def work(now: float, deadline: float) -> Work:
        yield from (each for each in rounds)  # a tuple's iterator has no send()
        return answer

    return work
