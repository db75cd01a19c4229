"""The exact drift test: its level holds for two values, and it finds a vote that has become unsure."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from scipy.stats import fisher_exact

from scaffolding_ext.stats.drift import drift_between


def sizes(rng: np.random.Generator, share: float, num: int) -> Counter[int]:
    """Votes that draw two samples where these agree, else four."""
    return Counter(np.where(rng.random(num) < share, 2, 4).tolist())


def test_false_alarms_of_two_values_are_no_oftener_than_the_level() -> None:
    """400 pairs; the share is held to 4 binomial standard errors above the level."""
    rng = np.random.default_rng(4)
    alarms = np.mean(
        [drift_between(sizes(rng, 0.8, 60), sizes(rng, 0.8, 40), rng, 199).p_value <= 0.05 for _ in range(400)]
    )
    assert alarms <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / 400)


def test_a_model_that_has_become_unsure_is_noticed() -> None:
    rng = np.random.default_rng(4)
    drift = drift_between(sizes(rng, 0.9, 200), sizes(rng, 0.5, 60), rng)
    assert drift.p_value < 0.001
    assert drift.recent_mean > drift.tuned_mean
    assert 0.2 < drift.distance < 0.6


def test_on_two_values_it_is_fisher_s_test() -> None:
    before, now = Counter({2: 40, 4: 10}), Counter({2: 12, 4: 10})
    exact = fisher_exact([[40, 10], [12, 10]]).pvalue
    assert drift_between(before, now, np.random.default_rng(0), 99_999).p_value == pytest.approx(exact, abs=0.03)


def test_a_side_without_a_value_is_refused() -> None:
    with pytest.raises(ValueError, match="each side needs a value"):
        drift_between({2: 5}, {}, np.random.default_rng(0))
