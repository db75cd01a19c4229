"""Programs for the simulated engine: which requests they send side by side, and what they do when these have ended."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from scaffolding_ext.controllers.budgets.queueing.simulation import NEVER
from scaffolding_ext.request.program import StepCounts


class RequestRound(NamedTuple):
    """Requests that a program sends at once.

    The round ends when all of them have ended, when `is_enough` says so, or at `until`. Requests that still run then
    are stopped.

    Attributes:
        num_tokens: Tokens that each request decodes if it runs to its end; at least one request.
        steps: How far the program is when it sends them.
        is_enough: Called each time that a request ends, with the indices of those that have ended, in that order.
        until: Simulated seconds.
    """

    num_tokens: tuple[float, ...]
    steps: StepCounts = StepCounts()
    is_enough: Callable[[Sequence[int]], bool] | None = None
    until: float = NEVER


class RoundEnd(NamedTuple):
    """The end of a round.

    Attributes:
        now: Simulated seconds.
        ended: Indices of the requests that ran to their end, in the order of their ends.
        seconds: From the round's beginning to the end of each of these, waiting included.
    """

    now: float
    ended: tuple[int, ...]
    seconds: tuple[float, ...]


Work = Generator[RequestRound, RoundEnd, Any]
"""The work of a program: it yields rounds, is sent the end of each, and returns its answer."""

Program = Callable[[float, float], Work]
"""Begins a program, given its arrival and its deadline in simulated seconds (infinite without one)."""


def fixed_program(*rounds: RequestRound, answer: Any = None) -> Program:
    """A program that sends the same rounds whenever it is served."""

    def work(now: float, deadline: float) -> Work:
        yield from (each for each in rounds)  # a tuple's own iterator takes nothing that is sent to it
        return answer

    return work


def so_many(number: int) -> Callable[[Sequence[int]], bool]:
    """A round is over when so many of its requests have ended."""
    return lambda ended: len(ended) >= number
