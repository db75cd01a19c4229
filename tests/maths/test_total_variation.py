"""The total-variation criterion against brute force, and its sample size against seeded simulations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaffolding_ext.maths.total_variation import has_stabilised, total_variation

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
        ([1, 2, 1, 1, 1, 2], 0.0, True),  # settled on a mixture
        ([1, 1, 1, 1, 1, 2], 0.3, False),
        ([1, 1, 1, 1, 1, 2], 1 / 3, True),
        ([-1, -1, -1, 1, 1, 1], 0.9, False),
    ],
)
def test_two_windows_of_three(classes: list[int], tolerance: float, stable: bool) -> None:
    assert has_stabilised(classes, 3, tolerance) is stable


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="window is 0"):
        has_stabilised([1], 0, 0.1)
    with pytest.raises(ValueError, match="tolerance is 1"):
        has_stabilised([1], 1, 1)
    with pytest.raises(ValueError, match="each needs at least one"):
        total_variation([], [1])
