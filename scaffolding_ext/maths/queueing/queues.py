"""Types of questions under budgets, in a queue of a kind: what the formula says, and what a simulation does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scaffolding_ext.maths import checks
from scaffolding_ext.maths.queueing.events import serve_by_servers, serve_in_batch, summarized
from scaffolding_ext.maths.queueing.lindley import Simulated, simulate_fifo
from scaffolding_ext.maths.queueing.model import Moments, pollaczek_khinchine
from scaffolding_ext.maths.queueing.tasks import Floats, TaskType, UnstableLoadError, shares_of


@dataclass(frozen=True)
class Queue:
    """What serves: first come first served in all cases.

    Attributes:
        places: How many are served at once.
        slowdown: Of an engine that batches: n at once go at the speed 1 / (1 + slowdown (n - 1)). None for servers
            that do not hinder each other, and 0 comes to the same.
    """

    places: int = 1
    slowdown: float | None = None

    def speed(self, size: int) -> float:
        """Of each of so many served at once, 1 being that of one alone."""
        return 1 / (1 + (self.slowdown or 0.0) * (size - 1))

    @property
    def capacity(self) -> float:
        """Seconds of work that are done in a second at most."""
        return self.places * self.speed(self.places)


class Outcome(NamedTuple):
    """What a simulation came to.

    Attributes:
        simulated: Its mean time in the system.
        formula: Pollaczek-Khinchine's, where one server serves.
    """

    simulated: Simulated
    formula: float | None


def simulate(
    tasks: Sequence[TaskType],
    budgets: Sequence[int],
    arrival_rate: float,
    queue: Queue,
    num_queries: int,
    rng: np.random.Generator,
) -> Outcome:
    """Serve Poisson arrivals of the types, each with its budget.

    Raises:
        WrongValueError: A number is outside its range.
        UnstableLoadError: Work arrives faster than the queue does it.
    """
    checks.whole("num_queries", num_queries, 1000)
    checks.number("arrival_rate", arrival_rate, above=0)
    shares = shares_of(tasks)
    seconds = np.array([task.t0 + task.c * tokens for task, tokens in zip(tasks, budgets, strict=True)])
    of = Moments(seconds @ shares, seconds**2 @ shares)
    most = queue.capacity / float(of.first)
    if arrival_rate >= most:
        what = f"serving takes {float(of.first):.6g} s on average under these budgets"
        raise UnstableLoadError(arrival_rate, most, what)
    ends = np.cumsum(shares)[:-1]

    def drawn(generator: np.random.Generator, number: int) -> Floats:
        return np.asarray(seconds[np.searchsorted(ends, generator.random(number), side="right")])

    if queue.places == 1:
        formula = float(pollaczek_khinchine(arrival_rate, of))
        return Outcome(simulate_fifo(drawn, arrival_rate, num_queries, rng), formula)
    arrivals = np.cumsum(rng.standard_exponential(num_queries)) / arrival_rate
    services = drawn(rng, num_queries)
    if queue.slowdown is None:
        departures = serve_by_servers(arrivals, services, queue.places)
    else:
        departures = serve_in_batch(arrivals, services, queue.places, queue.speed)
    return Outcome(summarized(arrivals, services, departures), None)
