"""A simulated queue before one server, by Lindley's recursion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats, TaskType, shares_of
from scaffolding_ext.stats.intervals import Estimate

_CHUNK = 1_000_000
_BATCHES = 40
_NORMAL = 1.96

Services = Callable[[np.random.Generator, int], Floats]


class Simulated(NamedTuple):
    """Result of a simulated queue.

    Attributes:
        system_time: Mean seconds of waiting and service, with a 95 % interval from means of long batches.
    """

    system_time: Estimate
    load: float
    num_queries: int


def waiting_times(gaps: Floats, services: Floats, backlog: float = 0.0) -> tuple[Floats, float]:
    """Seconds that each query waits for one server, first come first served.

    Lindley: W' = max(0, W + S - A). Summed up, the wait is the walk of S - A minus its running minimum.

    Args:
        gaps: Seconds between consecutive arrivals, shape [num_queries].
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
    """Simulate Poisson arrivals at one server, a million queries at a time to bound memory.

    Args:
        services: Draws a number of service times, in seconds.
        warm_up: Share of the first queries that is not counted, since the queue starts empty.
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
    """Mean of batch means, with a 95 % interval that treats them as independent."""
    if len(means) > _BATCHES:  # longer batches are closer to independent
        means = means[: len(means) // _BATCHES * _BATCHES].reshape(_BATCHES, -1).mean(axis=1)
    value = float(means.mean())
    half = _NORMAL * float(means.std(ddof=1)) / np.sqrt(len(means))
    return Estimate(value, value - half, value + half)


def simulate(
    tasks: Sequence[TaskType], budgets: Sequence[int], arrival_rate: float, num_queries: int, rng: np.random.Generator
) -> Simulated:
    """Simulate Poisson arrivals of the types, each with its budget."""
    seconds = np.array([task.t0 + task.c * tokens for task, tokens in zip(tasks, budgets, strict=True)])
    ends = np.cumsum(shares_of(tasks))[:-1]

    def drawn(generator: np.random.Generator, number: int) -> Floats:
        return np.asarray(seconds[np.searchsorted(ends, generator.random(number), side="right")])

    return simulate_fifo(drawn, arrival_rate, num_queries, rng)
