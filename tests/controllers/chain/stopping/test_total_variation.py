"""The total-variation criterion against brute force, and its sample size against seeded simulations."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaffolding_ext.controllers.chain.stopping.total_variation import has_stabilised, total_variation

some_classes = st.lists(st.integers(-1, 4), min_size=1, max_size=12)


@given(first=some_classes, second=some_classes)
def test_distance_is_the_largest_difference_over_events(first: list[int], second: list[int]) -> None:
    numbers = sorted({*first, *second})
    differences = [first.count(n) / len(first) - second.count(n) / len(second) for n in numbers]
    events = range(2 ** len(numbers))
    largest = max(abs(sum(d for i, d in enumerate(differences) if event >> i & 1)) for event in events)
    assert total_variation(first, second) == pytest.approx(largest)
    assert total_variation(second, first) == pytest.approx(total_variation(first, second))


@pytest.mark.parametrize(
    ("classes", "tolerance", "stable"),
    [
        ([1, 1, 1, 1, 1], 0.0, False),  # six probes are needed
        ([1, 1, 1, 1, 1, 1], 0.0, True),
        ([1, 2, 1, 1, 1, 2], 1 / 3, True),  # settled on a mixture
        ([1, 2, 1, 1, 1, 2], 0.3, False),  # its ends are alike, but the mixture between them is another
        ([1, 2, 3, 1, 2, 3], 0.9, False),  # goes round
        ([5, 4, 1, 1, 1, 1, 1, 1], 0.0, True),  # what came before does not count
        ([1, 1, 1, 1, 1, 2], 0.3, False),
        ([1, 1, 1, 1, 1, 2], 1 / 3, True),
        ([-1, -1, -1, 1, 1, 1], 0.9, False),
    ],
)
def test_two_windows_of_three(classes: list[int], tolerance: float, stable: bool) -> None:
    assert has_stabilised(classes, 3, tolerance) is stable


@pytest.mark.parametrize("window", [1, 2, 3, 4])
@pytest.mark.parametrize("tolerance", [0.0, 0.26, 0.5, 0.99])
def test_of_all_short_chains_no_circle_has_settled_and_every_constant_one_has(window: int, tolerance: float) -> None:
    for seen in itertools.product(range(3 if window < 4 else 2), repeat=2 * window):
        if len(set(seen)) == 1:
            assert has_stabilised(seen, window, tolerance)
        elif any(seen == (seen[:period] * 2 * window)[: 2 * window] for period in range(2, window + 1)):
            assert not has_stabilised(seen, window, tolerance)
        else:
            windows = [seen[start : start + window] for start in range(window + 1)]
            furthest = max(total_variation(windows[-1], each) for each in windows)
            assert has_stabilised(seen, window, tolerance) == (furthest <= tolerance + 1e-9)


@pytest.mark.parametrize("window", [2, 3, 4])
def test_without_tolerance_no_circle_of_any_length_ever_settles(window: int) -> None:
    for period in range(2, 7):
        for circle in itertools.product(range(3), repeat=period):
            if not any(len(set((circle * 3)[start : start + 2 * window])) == 1 for start in range(period)):
                endless = circle * 5
                assert not any(has_stabilised(endless[:end], window, 0.0) for end in range(len(endless)))


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="window: is 0"):
        has_stabilised([1], 0, 0.1)
    with pytest.raises(ValueError, match="tolerance: is 1"):
        has_stabilised([1], 1, 1)
    with pytest.raises(ValueError, match="each needs at least one"):
        total_variation([], [1])
