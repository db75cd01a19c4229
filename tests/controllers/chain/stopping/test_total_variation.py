"""The total-variation criterion against brute force, and the sample size that the page gives for it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.controllers.chain.stopping.agreement import TotalVariation, has_stabilised, total_variation

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
        ([1, 2, 1, 1, 1, 1], 1 / 3, True),
        ([1, 2, 1, 1, 1, 2], 1 / 3, False),  # of two probes, the last mixture is 1/2 away from the one before
        ([1, 2, 3, 1, 2, 3], 0.34, False),  # goes round
        ([5, 4, 1, 1, 1, 1, 1, 1], 0.0, True),  # what came before does not count
        ([1, 1, 1, 1, 1, 2], 0.49, False),
        ([1, 1, 1, 1, 1, 2], 0.5, True),
        ([-1, -1, -1, 1, 1, 1], 0.9, False),
    ],
)
def test_two_windows_of_three(classes: list[int], tolerance: float, stable: bool) -> None:
    assert has_stabilised(classes, 3, tolerance) is stable


def by_definition(seen: Sequence[int], k: int, tolerance: Fraction) -> bool:
    """Definition 2 word by word, in exact arithmetic."""

    def share(answer: int, end: int, size: int) -> Fraction:
        return Fraction(sum(seen[i] == answer for i in range(end - size, end)), size)

    n = len(seen)
    for size in (k, k - 1):
        for shift in range(1, size + 1):
            distance = sum(abs(share(a, n, size) - share(a, n - shift, size)) for a in set(seen)) / 2
            if distance > tolerance:
                return False
    return True


@pytest.mark.parametrize("window", [1, 2, 3, 4])
@pytest.mark.parametrize("tolerance", [Fraction(0), Fraction(1, 4), Fraction(1, 3), Fraction(1, 2), Fraction(9, 10)])
def test_of_all_short_chains_those_of_the_definition_have_settled(window: int, tolerance: Fraction) -> None:
    for seen in itertools.product(range(3 if window < 4 else 2), repeat=2 * window):
        assert has_stabilised(seen, window, float(tolerance)) == by_definition(seen, window, tolerance)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="window: is 0"):
        has_stabilised([1], 0, 0.1)
    with pytest.raises(ValueError, match="tolerance: is 1"):
        has_stabilised([1], 1, 1)
    with pytest.raises(ValueError, match="each needs at least one"):
        total_variation([], [1])


def test_a_chain_that_changed_its_mind_long_ago_stops() -> None:
    classes = [0] * 9 + [1] * 6
    probes = [Probe(Prefix(number + 1, "", None, None), str(each), each) for number, each in enumerate(classes)]
    assert TotalVariation(3)(probes)
