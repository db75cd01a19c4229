"""Simulated queues: one server by Lindley's recursion, several servers, and a batching engine.

An engine is not a FIFO server: it computes up to `batch_limit` queries at once, each slower the more there are.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.stats.intervals import Estimate

NEVER = float("inf")
T = TypeVar("T")
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


def serve_by_servers(arrivals: Floats, services: Floats, num_servers: int) -> Floats:
    """Departure of each query if the first in line goes to the first free server.

    Args:
        arrivals: Increasing seconds, shape [num_queries].
        services: Seconds of service, shape [num_queries].

    Returns:
        Seconds, shape [num_queries].
    """
    free = [0.0] * require.whole("num_servers", num_servers)
    departures = np.empty(len(arrivals))
    for query, (arrival, service) in enumerate(zip(arrivals.tolist(), services.tolist(), strict=True)):
        leaves = max(arrival, free[0]) + service
        heapq.heapreplace(free, leaves)
        departures[query] = leaves
    return departures


def serve_in_batch(
    arrivals: Floats, services: Floats, batch_limit: int, speed: Callable[[int], float] | None = None
) -> Floats:
    """Departure of each query from an engine that computes up to `batch_limit` at once; the others wait in line.

    Args:
        arrivals: Increasing seconds, shape [num_queries].
        services: Seconds that each would take by itself, shape [num_queries].
        speed: Speed of each of n parallel queries; see `BatchingEngine`.

    Returns:
        Seconds, shape [num_queries].
    """
    engine: BatchingEngine[int] = BatchingEngine(batch_limit, speed)
    departures = np.empty(len(arrivals))
    comes, works = [*arrivals.tolist(), NEVER], services.tolist()
    arrived = admitted = 0
    for _ in range(2 * len(works)):
        if comes[arrived] < engine.next_end:
            engine.advance(comes[arrived])
            arrived += 1
        else:
            query = engine.end()
            departures[query] = engine.now
        while admitted < arrived and engine.has_place:
            engine.begin(admitted, works[admitted])
            admitted += 1
    return departures


def summarized(arrivals: Floats, services: Floats, departures: Floats, warm_up: float = 0.02) -> Simulated:
    """Mean time in the system, without the warm-up queries."""
    times = (departures - arrivals)[int(warm_up * len(arrivals)) :]
    size = len(times) // _BATCHES
    if not size:
        raise ConfigError(f"is {len(arrivals)}; give at least 1000 for an interval", "num_queries")
    counted = size * _BATCHES
    means = times[:counted].reshape(_BATCHES, size).mean(axis=1)
    return Simulated(batch_estimate(means), float(services.sum() / arrivals[-1]), counted)
