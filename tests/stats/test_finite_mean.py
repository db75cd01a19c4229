"""The interval of a set's mean: exact misses over every order, its ends, and its width."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.stats.finite_mean import FiniteMean
from scaffolding_ext.stats.intervals import Interval


def first_miss(mean: FiniteMean, values: list[float]) -> bool:
    """Return True if the interval ever misses the mean of the values as they are drawn."""
    truth = sum(values) / len(values)
    for value in values:
        mean.add(value)
        if not mean.interval.low - 1e-9 <= truth <= mean.interval.high + 1e-9:
            return True
    return False


@pytest.mark.parametrize("num_right", [1, 3, 6])
@pytest.mark.parametrize("against", [None, 0.5])
def test_over_every_order_of_a_small_set_at_most_alpha_miss(num_right: int, against: float | None) -> None:
    """Every order of 11 values is tried, so the bound is held against the exact share."""
    alpha, size = 0.3, 11
    missed = total = 0
    for right in itertools.combinations(range(size), num_right):
        values = [float(place in right) for place in range(size)]
        missed += first_miss(FiniteMean(size, 0.2, against=against, alpha=alpha), values)
        total += 1
    assert total == math.comb(size, num_right)
    assert missed <= alpha * total


def test_the_bound_is_not_idle() -> None:
    """Some orders do miss: an interval that never misses would be wider than it promises."""
    rng = np.random.default_rng(0)
    values = [1.0] * 200 + [0.0] * 200
    missed = sum(first_miss(FiniteMean(400, 0.05, alpha=0.3), rng.permutation(values).tolist()) for _ in range(100))
    assert 0 < missed <= 30 + 3 * math.sqrt(100 * 0.3 * 0.7)


@pytest.mark.parametrize("size", [1, 2, 7, 60])
def test_a_set_that_is_drawn_has_a_point_for_its_interval(size: int) -> None:
    values = np.random.default_rng(size).choice([-1.0, 0.0, 0.5, 1.0], size).tolist()
    mean = FiniteMean(size, 0.04, Interval(-1.0, 1.0), against=0.0)
    before = mean.interval
    for value in values:
        mean.add(value)
        assert before.low - 1e-9 <= mean.interval.low <= mean.interval.high <= before.high + 1e-9
        before = mean.interval
    assert mean.estimate == pytest.approx((sum(values) / size,) * 3)


def test_it_refuses_a_value_outside_the_span_and_one_too_many() -> None:
    mean = FiniteMean(1, 0.1)
    with pytest.raises(ConfigError, match=r"value: is 1\.5"):
        mean.add(1.5)
    mean.add(1.0)
    with pytest.raises(ValueError, match="all 1 values were added before"):
        mean.add(1.0)


def test_values_that_do_not_vary_narrow_it_faster_than_hoeffding() -> None:
    mean = FiniteMean(100_000, 0.02)
    for _ in range(1000):
        mean.add(0.5)
    assert mean.interval.high - mean.interval.low < 2 * math.sqrt(math.log(40) / 2000) / 2
    assert mean.interval.low < 0.5 < mean.interval.high
