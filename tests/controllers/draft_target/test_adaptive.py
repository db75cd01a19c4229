"""Adaptive conformal inference against the bounds that its authors prove, on any scores and on drifting ones."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaffolding_ext.controllers.draft_target.adaptive import AdaptiveLevel
from scaffolding_ext.controllers.draft_target.scores import ScorePool

streams = st.lists(st.floats(0.001, 1), min_size=1, max_size=200)
levels = st.builds(AdaptiveLevel, st.floats(0.02, 0.98), st.floats(0.001, 0.5))


@given(streams, levels)
def test_the_rate_stays_within_its_bound_whatever_comes(p_values: list[float], adaptive: AdaptiveLevel) -> None:
    for p_value in p_values:
        level = adaptive.level
        assert adaptive.decide(p_value) == (p_value <= level)
        assert abs(adaptive.rate - adaptive.alpha) <= adaptive.rate_bound + 1e-9
        assert -adaptive.step_len <= adaptive.level <= 1 + adaptive.step_len


@given(streams, levels)
def test_the_regret_stays_within_its_bound(p_values: list[float], adaptive: AdaptiveLevel) -> None:
    for p_value in p_values:
        adaptive.decide(p_value)
    farthest = max(adaptive.alpha, 1 - adaptive.alpha)
    bound = farthest**2 / (2 * adaptive.step_len) + len(p_values) * adaptive.step_len * farthest**2 / 2
    assert adaptive.regret() <= bound + 1e-9


@given(streams, levels, st.floats(0, 1))
def test_no_single_level_does_better_than_the_one_that_regret_compares_with(
    p_values: list[float], adaptive: AdaptiveLevel, other: float
) -> None:
    used = []
    for p_value in p_values:
        used.append(adaptive.level)
        adaptive.decide(p_value)
    p = np.array(p_values)

    def loss(level: float | list[float]) -> float:
        return float(
            np.where(p > level, adaptive.alpha * (p - level), (1 - adaptive.alpha) * (np.asarray(level) - p)).sum()
        )

    finest = len(p) / 1024
    assert loss(used) - adaptive.regret() <= loss(other) + finest + 1e-9
    assert loss(used) - adaptive.regret() >= min(loss(level) for level in p_values) - 1e-9


def test_it_keeps_the_rate_where_a_fixed_level_loses_it() -> None:
    """Scores that drift away from a calibration set; 4,000 decisions."""
    rng = np.random.default_rng(3)
    pool = ScorePool(rng.normal(size=499))
    adaptive = AdaptiveLevel(0.25, 0.02)
    fixed = 0
    for step in range(4_000):
        p_value = pool.p_value(rng.normal(step / 2_000))
        fixed += p_value <= 0.25
        adaptive.decide(p_value)
    assert fixed / 4_000 > 0.5
    assert abs(adaptive.rate - 0.25) <= adaptive.rate_bound < 0.01


def test_before_the_first_decision() -> None:
    adaptive = AdaptiveLevel(0.4)
    assert (adaptive.rate, adaptive.rate_bound, adaptive.regret()) == (0.4, 1.0, 0.0)


@pytest.mark.parametrize(
    ("alpha", "step_len", "message"),
    [(0.0, 0.005, "alpha: is 0.0"), (1.0, 0.005, "alpha: is 1.0"), (0.4, 0.0, "step_len: is 0.0")],
)
def test_settings_out_of_range_are_refused(alpha: float, step_len: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AdaptiveLevel(alpha, step_len)


def test_what_is_kept_does_not_grow_with_the_decisions() -> None:
    adaptive = AdaptiveLevel(0.25, 0.01)
    adaptive.decide(0.5)
    size = len(pickle.dumps(adaptive))
    for p_value in np.random.default_rng(0).uniform(size=20_000).tolist():
        adaptive.decide(p_value)
    assert len(pickle.dumps(adaptive)) <= size + 64
