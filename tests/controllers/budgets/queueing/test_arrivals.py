"""Arrivals held against a plan: rates and mixes that drifted are seen, and chance is not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.controllers.budgets.queueing.arrivals import Arrivals, ArrivalWindow, DriftBounds, compare_arrivals
from scaffolding_ext.errors import ConfigError

SHARES = {"sums": 0.6, "proofs": 0.3, "facts": 0.1}


def windows(rate: float, shares: dict[str, float], number: int, bounds: DriftBounds, seed: int = 0) -> list[Arrivals]:
    """What windows of simulated arrivals say, planned for one a second in the mix above."""
    rng = np.random.default_rng(seed)
    window, now, found = ArrivalWindow(bounds), 0.0, []
    names = list(shares)
    for _ in range(number * bounds.window + 1):
        now += rng.exponential(1 / rate)
        seen = window.add(now, names[rng.choice(len(names), p=list(shares.values()))], 1.0, SHARES)
        found += [] if seen is None else [seen]
    assert len(found) == number
    return found


def test_chance_alone_is_rarely_a_drift_and_intervals_hold_the_rate() -> None:
    found = windows(1.0, SHARES, 400, DriftBounds(rate=1e-9, mix=1e-9, window=60))
    # 1 % of the windows each, binomially; and 95 % of the intervals
    assert 0 <= sum(each.rate_drifted for each in found) <= 12
    assert 0 <= sum(each.mix_drifted for each in found) <= 12
    assert 365 <= sum(each.rate.low <= 1.0 <= each.rate.high for each in found) <= 393


@pytest.mark.parametrize("rate", [0.5, 2.0])
def test_another_rate_is_seen_and_only_that(rate: float) -> None:
    found = windows(rate, SHARES, 40, DriftBounds(window=100))
    assert sum(each.rate_drifted for each in found) >= 38
    assert sum(each.mix_drifted for each in found) <= 3
    assert np.mean([each.rate.value for each in found]) == pytest.approx(rate, rel=0.06)


def test_another_mix_is_seen_and_only_that() -> None:
    found = windows(1.0, {"sums": 0.2, "proofs": 0.3, "facts": 0.5}, 40, DriftBounds(window=100))
    assert all(each.mix_drifted for each in found)
    assert sum(each.rate_drifted for each in found) <= 3
    assert np.mean([each.shares["facts"] for each in found]) == pytest.approx(0.5, abs=0.05)


def test_a_drift_within_the_bounds_is_none_however_sure() -> None:
    exact = {"sums": 6600, "proofs": 2700, "facts": 700}
    found = compare_arrivals(8000, exact, 0, 1.0, SHARES, DriftBounds())
    assert found.rate.low > 1.2
    assert not found.drifted
    assert compare_arrivals(8000, exact, 0, 1.0, SHARES, DriftBounds(rate=0.2, mix=0.05)) == found._replace(
        rate_drifted=True, mix_drifted=True
    )


@given(
    st.dictionaries(st.sampled_from([*SHARES, "other"]), st.integers(0, 40)), st.integers(0, 40), st.floats(0.01, 1e4)
)
@settings(max_examples=60, deadline=None)
def test_shares_are_such_that_types_can_be_planned_for(counts: dict[str, int], unknown: int, seconds: float) -> None:
    if sum(counts.get(name, 0) for name in SHARES) + unknown == 0:
        return
    found = compare_arrivals(seconds, counts, unknown, 1.0, SHARES, DriftBounds())
    assert sum(found.shares.values()) == pytest.approx(1)
    assert min(found.shares.values()) > 0
    assert found.rate.low <= found.rate.value <= found.rate.high


def test_unknown_types_count_for_the_rate_alone() -> None:
    found = compare_arrivals(10, {}, 20, 2.0, SHARES, DriftBounds())
    assert found.rate.value == 2.0
    assert found.shares == pytest.approx(SHARES)
    assert not found.drifted


def test_one_type_has_no_mix_to_drift() -> None:
    assert not compare_arrivals(10, {"all": 10}, 0, 1.0, {"all": 1.0}, DriftBounds()).mix_drifted


def test_a_window_waits_for_time_to_pass() -> None:
    window = ArrivalWindow(DriftBounds(window=10))
    assert [window.add(5.0, "sums", 1.0, SHARES) for _ in range(30)] == [None] * 30
    found = window.add(6.0, "sums", 1.0, SHARES)
    assert found is not None
    assert found.rate.value == 30.0


@pytest.mark.parametrize("bounds", [{"rate": 0}, {"mix": 1.5}, {"window": 9}, {"level": 1}])
def test_bounds_that_cannot_be(bounds: dict[str, float]) -> None:
    with pytest.raises(ConfigError) as caught:
        DriftBounds(**bounds)  # type: ignore[arg-type]
    assert caught.value.key == next(iter(bounds))
