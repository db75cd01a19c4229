"""Queues: mean time by formula."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.budgets.queueing.model import Moments
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats


@dataclass(frozen=True)
class Queue:
    """A server, several servers, or a batching engine; always first come first served.

    Attributes:
        slowdown: For a batching engine: n at once run at speed 1 / (1 + slowdown (n - 1)). None, like 0, stands for
            independent servers.
    """

    places: int = 1
    slowdown: float | None = None

    def __post_init__(self) -> None:
        require.whole("places", self.places)
        require.number("slowdown", self.slowdown or 0.0, least=0)

    def speed(self, size: float) -> float:
        """Speed of each of `size` questions served at once; 1 for a single one."""
        return 1 / (1 + (self.slowdown or 0.0) * (size - 1))

    @property
    def capacity(self) -> float:
        """Seconds of work per second of the full queue."""
        return self.places * self.speed(self.places)

    def mean_time(self, arrival_rate: float, of: Moments) -> Floats:
        """Mean seconds in the system, waiting and service; infinite if work arrives faster than it is done.

        With one place the formula is Pollaczek-Khinchine's, which is exact. With more it is a birth-death chain whose
        waiting time is scaled by (1 + C²) / 2, C the coefficient of variation: exact for exponential services, and
        without waiting.

        A question with several requests takes `first / path` places on average while it is served. Then the formula is
        an approximation.

        Args:
            of: Moments of the service times of questions alone; arrays of one shape.

        Reference: Kelly, "Reversibility and Stochastic Networks", 1979 (sharing does not depend on the shape of the
            service); Lee and Longton, "Queueing processes associated with airline passenger check-in", 1959 (waiting).
        """
        first, second = np.asarray(of.first, dtype=np.float64), np.asarray(of.second, dtype=np.float64)
        path = first if of.path is None else np.clip(of.path, first / self.places, first)
        offered = arrival_rate * first
        with np.errstate(divide="ignore", invalid="ignore"):
            width = np.where(first > 0, first / path, 1.0)
            full = np.minimum(offered / self.capacity, 1.0)  # chance that one arrives before one leaves, all busy
            weight, total = np.ones_like(offered), np.ones_like(offered)
            inside, waiting = np.zeros_like(offered), np.zeros_like(offered)
            for count in range(1, self.places + 1):
                size = np.minimum(count * width, self.places)
                weight = weight * offered * (1 + (self.slowdown or 0.0) * (size - 1)) / size
                served = np.minimum(count, self.places / width)
                total, inside, waiting = total + weight, inside + served * weight, waiting + (count - served) * weight
            line = weight * full / (1 - full)  # all states with more questions than places
            served = self.places / width
            total, inside = total + line, inside + served * line
            waiting = waiting + (self.places - served) * line + weight * full / (1 - full) ** 2
            times = (inside + waiting * second / (2 * first**2)) / total / arrival_rate
        return np.where(full < 1, np.where(first > 0, times, 0.0), np.inf)
