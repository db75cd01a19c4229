"""Moving averages by hand and against the whole weighted sum, and the threshold that rises."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaffolding_ext.controllers.chain.stopping.entropy import moving_average
from scaffolding_ext.controllers.chain.stopping.giving_up import rising_threshold

some_values = st.lists(st.floats(-10, 10), min_size=1, max_size=12)


def test_by_hand() -> None:
    assert moving_average([3.0], 0.2) == (3.0, 0.0)
    # means 4, 2, 3; variances 0, 0.5 * (0 - 2)^2, 0.5 * (4 - 3)^2 + 0.5 * 2
    assert moving_average([4.0, 0.0, 4.0], 0.5) == (3.0, 1.5)
    assert moving_average([4.0, 0.0, 1.0], 1.0) == (1.0, 0.0)  # the newest alone


@given(values=some_values, smoothing=st.floats(0.05, 1.0))
def test_the_mean_is_the_weighted_sum_of_all_values(values: list[float], smoothing: float) -> None:
    kept = 1.0 - smoothing
    weights = [kept ** (len(values) - 1), *(smoothing * kept**age for age in range(len(values) - 2, -1, -1))]
    assert math.fsum(weights) == pytest.approx(1.0)
    expected = math.fsum(weight * value for weight, value in zip(weights, values, strict=True))
    assert moving_average(values, smoothing).mean == pytest.approx(expected, abs=1e-9)


@given(value=st.floats(-5, 5), num=st.integers(1, 9), smoothing=st.floats(0.05, 1.0))
def test_what_does_not_move_has_no_variance(value: float, num: int, smoothing: float) -> None:
    assert moving_average([value] * num, smoothing).variance == pytest.approx(0.0, abs=1e-20)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="smoothing: is 0"):
        moving_average([1.0], 0)
    with pytest.raises(ValueError, match="at least one is needed"):
        moving_average([], 0.5)


def test_the_threshold_rises_from_least_to_most_and_is_half_way_at_the_midpoint() -> None:
    curve = [rising_threshold(num, 0.1, 0.9, 1000, 0.01) for num in range(0, 2001, 100)]
    assert curve == sorted(curve)
    assert curve[10] == pytest.approx(0.5)
    assert (curve[0], curve[-1]) == (pytest.approx(0.1, abs=1e-4), pytest.approx(0.9, abs=1e-4))
    assert rising_threshold(1200, 0.0, 1.0, 1000, 0.01) == pytest.approx(1 / (1 + math.exp(-2)))
    assert rising_threshold(0, 0.0, 1.0, 10**9, 1.0) == pytest.approx(0.0)  # far away is no overflow
