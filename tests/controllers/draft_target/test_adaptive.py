"""Adaptive conformal inference against the bounds that its authors prove, on any scores and on drifting ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaffolding_ext.controllers.draft_target.adaptive import AdaptiveLevel

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


@pytest.mark.parametrize(
    ("alpha", "step_len", "message"),
    [(0.0, 0.005, "alpha: is 0.0"), (1.0, 0.005, "alpha: is 1.0"), (0.4, 0.0, "step_len: is 0.0")],
)
def test_settings_out_of_range_are_refused(alpha: float, step_len: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AdaptiveLevel(alpha, step_len)
