"""A simulated engine that batches: up to `batch_limit` requests at once, each slower the more there are."""

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
    """Requests served side by side at one speed.

    One clock of the work done for each request suffices: a request ends when the clock has advanced by its service
    time.

    Args:
        speed: Speed of each of n parallel requests; 1 for a single request. None is always 1, and 1 / n is processor
            sharing.

    Attributes:
        next_end: End of the next request if no other begins before; infinite without requests.
    """

    def __init__(self, batch_limit: int, speed: Callable[[int], float] | None = None) -> None:
        sizes = range(1, require.whole("batch_limit", batch_limit) + 1)
        self._rates = [0.0, *(1.0 if speed is None else float(speed(size)) for size in sizes)]
        if min(self._rates[1:]) <= 0:
            raise ConfigError(f"is {min(self._rates[1:])} at some size; it must be above 0", "speed")
        self.now = self._clock = 0.0
        self.next_end = NEVER
        self._batch: list[tuple[float, int, T]] = []  # clock time of each end, and its number
        self._numbers = itertools.count()

    @property
    def has_place(self) -> bool:
        """True if another request may begin."""
        return len(self._batch) < len(self._rates) - 1

    def begin(self, request: T, service: float) -> None:
        """Begin a request that would take `service` seconds by itself."""
        heapq.heappush(self._batch, (self._clock + service, next(self._numbers), request))
        self._foresee()

    def advance(self, now: float) -> None:
        """Advance to a time not later than `next_end`."""
        self._clock += self._rates[len(self._batch)] * (now - self.now)
        self.now = now

    def end(self) -> T:
        """Advance to `next_end` and return the request that ends there."""
        self.now = self.next_end
        self._clock, _, request = heapq.heappop(self._batch)
        if not self._batch:
            self._clock = 0.0  # keeps it precise
        self._foresee()
        return request

    def stop(self, request: T) -> float:
        """Remove a running request; returns the seconds of service it has left."""
        place = next(place for place, (*_, each) in enumerate(self._batch) if each is request)
        left = self._batch[place][0] - self._clock
        self._batch[place] = self._batch[-1]
        self._batch.pop()
        heapq.heapify(self._batch)
        if not self._batch:
            self._clock = 0.0
        self._foresee()
        return left

    def _foresee(self) -> None:
        rate = self._rates[len(self._batch)]
        self.next_end = self.now + (self._batch[0][0] - self._clock) / rate if self._batch else NEVER
