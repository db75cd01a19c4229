"""An engine that computes several requests at once, each slower the more there are, in simulated time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Generic, TypeVar

from scaffolding_ext import require
from scaffolding_ext.errors import ConfigError

NEVER = float("inf")
T = TypeVar("T")


class BatchingEngine(Generic[T]):
    """Requests side by side, which all go on at one speed.

    So one clock of work done for each is enough: a request ends when the clock has gone on by its service since it
    came in.

    Args:
        batch_limit: Requests at once, at least 1.
        speed: Of each of n requests side by side, 1 being that of a request alone; always 1 where left out. 1 / n is
            processor sharing.

    Attributes:
        now: Simulated seconds.
        next_end: When the next request ends, if none comes before; infinite where there is none.

    Raises:
        ConfigError: The limit is below 1, or a speed not above 0.
    """

    def __init__(self, batch_limit: int, speed: Callable[[int], float] | None = None) -> None:
        sizes = range(1, require.whole("batch_limit", batch_limit) + 1)
        self._rates = [0.0, *(1.0 if speed is None else float(speed(size)) for size in sizes)]
        if min(self._rates[1:]) <= 0:
            raise ConfigError(f"is {min(self._rates[1:])} at some size; it must be above 0", "speed")
        self.now = self._clock = 0.0
        self.next_end = NEVER
        self._batch: list[tuple[float, int, T]] = []  # the clock's time at which each ends, and its number
        self._numbers = itertools.count()

    @property
    def has_place(self) -> bool:
        """Whether one more may begin."""
        return len(self._batch) < len(self._rates) - 1

    def begin(self, request: T, service: float) -> None:
        """Let a request in, which would take so many seconds alone."""
        heapq.heappush(self._batch, (self._clock + service, next(self._numbers), request))
        self._foresee()

    def advance(self, now: float) -> None:
        """Go on to a time that is not behind `next_end`."""
        self._clock += self._rates[len(self._batch)] * (now - self.now)
        self.now = now

    def end(self) -> T:
        """Go on to `next_end`; returns the request that ends there."""
        self.now = self.next_end
        self._clock, _, request = heapq.heappop(self._batch)
        if not self._batch:
            self._clock = 0.0  # so that it stays precise
        self._foresee()
        return request

    def _foresee(self) -> None:
        rate = self._rates[len(self._batch)]
        self.next_end = self.now + (self._batch[0][0] - self._clock) / rate if self._batch else NEVER
