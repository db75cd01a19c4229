"""A simulated queue against the recursion and a closed form."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks._lib.fifo_queue import simulate_fifo, waiting_times
from scaffolding_ext.controllers.budgets.queueing.model import Moments, pollaczek_khinchine


def drawn(seed: int, num_queries: int, rate: float, mean: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return np.cumsum(rng.exponential(1 / rate, num_queries)), rng.exponential(mean, num_queries)


def test_waits_are_those_of_the_recursion() -> None:
    arrivals, services = drawn(0, 500, 0.9)
    gaps = np.diff(arrivals, prepend=0.0)
    waits, work = [0.0], 0.0
    for gap, service in zip(gaps[1:], services, strict=False):
        waits.append(max(0.0, waits[-1] + service - gap))
    work = waits[-1] + services[-1]
    found, left = waiting_times(gaps.copy(), services)
    assert found == pytest.approx(waits, abs=1e-9)
    assert left == pytest.approx(work)
    half, between = waiting_times(gaps[:200].copy(), services[:200])
    rest, left = waiting_times(gaps[200:].copy(), services[200:], between)
    assert np.concatenate([half, rest]) == pytest.approx(waits, abs=1e-9)
    assert left == pytest.approx(work)


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_the_mean_time_is_pollaczek_and_khinchine_s(load: float) -> None:
    seconds = np.array([0.2, 1.0, 3.0])
    shares = np.array([0.5, 0.3, 0.2])
    rate = load / float(seconds @ shares)
    expected = float(pollaczek_khinchine(rate, Moments(seconds @ shares, seconds**2 @ shares)))
    found = simulate_fifo(lambda rng, n: rng.choice(seconds, n, p=shares), rate, 400_000, np.random.default_rng(1))
    half = found.system_time.high - found.system_time.value
    assert abs(found.system_time.value - expected) < 2 * half  # four standard errors: a chance of 1 in 16,000
    assert half < 0.05 * expected
    assert found.load == pytest.approx(load, rel=0.01)
