"""A simulated queue against the recursion and a closed form."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.studies.queueing import simulate_fifo, waiting_times
from scaffolding_ext.controllers.budgets.queueing.model import Moments, pollaczek_khinchine


def test_waits_are_those_of_the_recursion() -> None:
    rng = np.random.default_rng(0)
    gaps, services = rng.exponential(1 / 0.9, 500), rng.exponential(1.0, 500)
    waits = [0.0]
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
    found, _ = simulate_fifo(lambda rng, n: rng.choice(seconds, n, p=shares), rate, 400_000, np.random.default_rng(1))
    half = found.high - found.value
    assert abs(found.value - expected) < 2 * half  # four standard errors: a chance of 1 in 16,000
    assert half < 0.05 * expected
