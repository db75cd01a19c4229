"""Arrivals by chance: their rate, and how much they come in bursts."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks._lib.traffic.arrivals import arrival_times
from scaffolding_ext.errors import ConfigError


@pytest.mark.parametrize("burst", [0.5, 1.0, 2.0])
def test_gaps_have_the_rate_and_the_variation(burst: float) -> None:
    num = 200_000
    gaps = np.diff(arrival_times(4.0, num, np.random.default_rng(0), burst))
    assert (gaps >= 0).all()
    assert gaps.mean() == pytest.approx(0.25, abs=5 * 0.25 * burst / num**0.5)  # five standard errors
    assert gaps.std() / gaps.mean() == pytest.approx(burst, rel=0.03)


def test_one_seed_gives_the_same_arrivals_and_more_of_them_begin_alike() -> None:
    few, more = (arrival_times(2.0, num, np.random.default_rng(3)) for num in (10, 20))
    np.testing.assert_array_equal(few, more[:10])


@pytest.mark.parametrize("wrong", [{"arrival_rate": 0.0}, {"arrival_rate": 1.0, "burst": 0.0}])
def test_no_rate_and_no_variation_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"arrival_rate|burst"):
        arrival_times(number=3, rng=np.random.default_rng(0), **wrong)
