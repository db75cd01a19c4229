"""The watch on a promised loss: it seldom cries where the promise is kept, and finds out where it is not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import beta, binom

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.stats.watching import LossWatch, log_evidence, lower_bound

NUM_STREAMS = 400


def first_alarms(loss: float, length: int, promised: float, seed: int) -> list[int]:
    """The audited request of each stream by which the promise is called broken, of those that ever are."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(NUM_STREAMS):
        audited = 1 + np.flatnonzero(rng.random(length) < loss)  # evidence grows at a lost request alone
        alarms = audited[log_evidence(np.arange(1, len(audited) + 1), audited, promised) >= math.log(20)]
        found += alarms[:1].tolist()
    return found


@pytest.mark.parametrize(("num_lost", "num_audited", "promised"), [(0, 1, 0.02), (3, 40, 0.02), (40, 900, 0.05)])
def test_evidence_is_the_mixture_of_likelihood_ratios(num_lost: int, num_audited: int, promised: float) -> None:
    prior = beta(1, 1 / (2 * promised))

    def weighed(loss: float) -> float:
        ratio = binom.logpmf(num_lost, num_audited, loss) - binom.logpmf(num_lost, num_audited, promised)
        return float(np.exp(ratio) * prior.pdf(loss) / prior.sf(promised))

    peak = min(max(num_lost / num_audited, promised * 1.01), 0.99)
    expected, _ = quad(weighed, promised, 1, points=[peak], limit=500)
    assert np.exp(log_evidence(num_lost, num_audited, promised)) == pytest.approx(expected, rel=1e-6)


def test_a_kept_promise_is_seldom_called_broken_in_ten_thousand_requests() -> None:
    alarms = len(first_alarms(0.02, 10_000, 0.02, seed=5))
    assert alarms <= 0.05 * NUM_STREAMS


def test_twice_the_promised_loss_is_found_within_fifteen_hundred_requests() -> None:
    assert len(first_alarms(0.04, 1_500, 0.02, seed=6)) >= 0.9 * NUM_STREAMS


def test_the_watch_says_once_that_the_promise_is_broken() -> None:
    watch = LossWatch(0.02)
    said = [watch.add(True) for _ in range(10)]
    assert sum(said) == 1
    assert watch.is_broken
    for _ in range(1_000):
        assert not watch.add(False)
    assert watch.is_broken  # what was refuted once stays so
    assert (watch.num_lost, watch.num_audited) == (10, 1_010)


def test_the_lower_bound_is_where_the_evidence_reaches_its_limit() -> None:
    bound = lower_bound(30, 500, 0.05)
    assert 0.02 < bound < 30 / 500
    assert log_evidence(30, 500, bound) == pytest.approx(math.log(20), abs=1e-6)
    assert LossWatch(0.02).lower_bound() == 0.0
    assert 0 < lower_bound(5, 5, 0.05) < 1
    assert lower_bound(1, 10_000, 0.05) < 1 / 10_000


@pytest.mark.parametrize("promised", [0, 1, -0.1, 1.5])
def test_a_promise_is_a_share(promised: float) -> None:
    with pytest.raises(ConfigError, match="promised"):
        LossWatch(promised)
