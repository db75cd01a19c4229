"""The drift test: silent where nothing changed, loud where certainty fell."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scaffolding_ext.controllers.certaindex import entropy_certaindex
from scaffolding_ext.stats.drift import drift_between


def votes(rng: np.random.Generator, share: float, size: int) -> list[float]:
    """Certaindex after 5 samples of questions whose likeliest answer has the share."""
    return [
        entropy_certaindex([int(rng.random() > share) * int(rng.integers(1, 4)) for _ in range(5)]) for _ in range(size)
    ]


def test_false_alarms_are_no_oftener_than_the_level() -> None:
    """400 pairs; the share is held to 4 binomial standard errors above the level."""
    rng = np.random.default_rng(4)
    alarms = np.mean([drift_between(votes(rng, 0.8, 60), votes(rng, 0.8, 40), 0.05).drifted for _ in range(400)])
    assert alarms <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / 400)


def test_a_model_that_has_become_unsure_is_noticed() -> None:
    rng = np.random.default_rng(4)
    drift = drift_between(votes(rng, 0.9, 200), votes(rng, 0.5, 100))
    assert drift.drifted
    assert drift.p_value < 1e-6
    assert 0 < drift.distance <= 1


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(ValueError, match="0 and 1 values"):
        drift_between([], [0.5])
    with pytest.raises(ValueError, match="level: is 1"):
        drift_between([0.5], [0.5], 1)
