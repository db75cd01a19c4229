"""Queues that Lindley's recursion does not reach, event by event: several servers, and an engine that batches.

An engine is no FIFO server: it computes up to `batch_limit` queries at once, and each is slower the more there are.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.budgets.queueing.batching import NEVER, BatchingEngine
from scaffolding_ext.controllers.budgets.queueing.lindley import Simulated, batch_estimate
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats
from scaffolding_ext.errors import ConfigError

_BATCHES = 40


def serve_by_servers(arrivals: Floats, services: Floats, num_servers: int) -> Floats:
    """When each query leaves, if the first in the line goes to the first server that is free.

    Args:
        arrivals: Seconds, growing, shape [num_queries].
        services: Seconds of service, shape [num_queries].
        num_servers: At least 1.

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
    """When each query leaves an engine that computes up to `batch_limit` at once and has the others wait in line.

    Args:
        arrivals: Seconds, growing, shape [num_queries].
        services: Seconds that each would take alone, shape [num_queries].
        batch_limit: At least 1.
        speed: Of each of n queries side by side; see `BatchingEngine`.

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
    """Mean time in the system of what was served, after the first part that is not counted."""
    times = (departures - arrivals)[int(warm_up * len(arrivals)) :]
    size = len(times) // _BATCHES
    if not size:
        raise ConfigError(f"is {len(arrivals)}; give at least 1000, for an interval", "num_queries")
    counted = size * _BATCHES
    means = times[:counted].reshape(_BATCHES, size).mean(axis=1)
    return Simulated(batch_estimate(means), float(services.sum() / arrivals[-1]), counted)
