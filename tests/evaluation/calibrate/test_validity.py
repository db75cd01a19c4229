"""Realised rates and their intervals, which cover."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scaffolding_ext.evaluation.calibrate.conformal_run import realised_rate
from scaffolding_ext.stats.intervals import wilson_interval


def seeded(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_a_rate_has_the_interval_of_its_questions() -> None:
    fired, questions = np.repeat([1, 0, 0, 1, 0, 0, 0, 1], 25), np.repeat(np.arange(8), 25)
    rate, interval = realised_rate(fired, questions, seeded())
    assert rate == 0.375
    assert interval is not None
    binomial = wilson_interval(75, 200)
    assert interval.high - interval.low > 3 * (binomial.high - binomial.low)
    assert realised_rate(fired, np.zeros(200), seeded())[1] is None


def test_the_interval_covers_where_the_binomial_one_does_not() -> None:
    """400 runs of 60 questions with 10 decisions each, which agree within a question; 4 binomial standard errors."""
    rng = seeded(1)
    clustered = binomial = 0
    for _ in range(400):
        fired = (rng.random((60, 10)) < rng.beta(0.4, 0.6, size=(60, 1))).ravel()
        _, interval = realised_rate(fired, np.repeat(np.arange(60), 10), rng, num_resamples=400)
        assert interval is not None
        clustered += interval.low <= 0.4 <= interval.high
        of_binomial = wilson_interval(int(fired.sum()), 600)
        binomial += of_binomial.low <= 0.4 <= of_binomial.high
    assert clustered / 400 > 0.95 - 4 * math.sqrt(0.95 * 0.05 / 400) - 0.01  # 0.01: 60 questions are few
    assert binomial / 400 < 0.7


def test_what_is_no_decision_is_refused() -> None:
    with pytest.raises(ValueError, match="neither 0 nor 1"):
        realised_rate([0.04, 0.5], [1, 2], seeded())
