"""A FIFO queue with one server, simulated: Lindley's recursion for millions of queries at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats
from scaffolding_ext.stats.intervals import Estimate

_CHUNK = 1_000_000
_BATCHES = 40
_NORMAL = 1.96

Services = Callable[[np.random.Generator, int], Floats]


class Simulated(NamedTuple):
    """What a simulated queue came to.

    Attributes:
        system_time: Mean seconds of waiting and service, with a 95 % interval from means of long batches.
        load: Share of the time that service takes.
        num_queries: How many were counted.
    """

    system_time: Estimate
    load: float
    num_queries: int


def waiting_times(gaps: Floats, services: Floats, backlog: float = 0.0) -> tuple[Floats, float]:
    """Seconds that each query waits for one server, first come first served.

    Lindley: W' = max(0, W + S - A). Summed up, the wait is the walk of S - A less its lowest value so far.

    Args:
        gaps: Seconds from the arrival before to each arrival, shape [num_queries].
        services: Seconds of service, shape [num_queries].
        backlog: Seconds of work in the queue when the first gap begins.

    Returns:
        The waits, shape [num_queries], and the work in the queue right after the last arrival.
    """
    steps = -gaps
    steps[0] += backlog
    steps[1:] += services[:-1]
    walk = np.cumsum(steps)
    waits = walk - np.minimum(np.minimum.accumulate(walk), 0)
    return waits, float(waits[-1] + services[-1])


def simulate_fifo(
    services: Services, arrival_rate: float, num_queries: int, rng: np.random.Generator, warm_up: float = 0.02
) -> Simulated:
    """Serve Poisson arrivals by one server; a million queries at a time, so that memory stays small.

    Args:
        services: Draws that many service times, in seconds.
        arrival_rate: Arrivals a second.
        num_queries: How many are simulated, at least 1,000.
        rng: Where all randomness comes from.
        warm_up: Share of the queries that come first and are not counted: the queue starts empty.
    """
    require.number("arrival_rate", arrival_rate, above=0)
    require.whole("num_queries", num_queries, 1000)
    size = min(_CHUNK, num_queries // _BATCHES)
    first, backlog, means, load = int(warm_up * num_queries), 0.0, [], 0.0
    counted = (num_queries - first) // size * size
    total = first + counted
    times = np.empty(0)
    done = 0
    while done < total:
        number = min(_CHUNK, total - done)
        served = services(rng, number)
        waits, backlog = waiting_times(rng.standard_exponential(number) / arrival_rate, served, backlog)
        load += float(served.sum())
        times = np.concatenate([times, (waits + served)[max(first - done, 0) :]])
        whole = len(times) // size * size
        means.extend(times[:whole].reshape(-1, size).mean(axis=1))
        times, done = times[whole:], done + number
    return Simulated(batch_estimate(np.asarray(means)), arrival_rate * load / total, counted)


def batch_estimate(means: Floats) -> Estimate:
    """Mean of batch means, with a 95 % interval that takes them as independent."""
    if len(means) > _BATCHES:  # longer batches are more nearly independent
        means = means[: len(means) // _BATCHES * _BATCHES].reshape(_BATCHES, -1).mean(axis=1)
    value = float(means.mean())
    half = _NORMAL * float(means.std(ddof=1)) / np.sqrt(len(means))
    return Estimate(value, value - half, value + half)
