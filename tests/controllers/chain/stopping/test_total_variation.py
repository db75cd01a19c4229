"""The total-variation criterion against brute force, and the sample size that the page gives for it."""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaffolding_ext.controllers.chain.stopping.agreement import has_stabilised, total_variation

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


def test_mixtures_of_one_probe_less_tell_what_moves() -> None:
    chains = list(itertools.product(range(3), repeat=8))
    assert len(chains) == 6561
    assert sum(has_stabilised(seen, 4, 0.25) for seen in chains) == 135  # without them, 2,817
    assert not has_stabilised([0, 1, 0, 2, 0, 1, 0, 3], 4, 0.25)


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


def probes_needed(num_answers: int, tolerance: float, confidence: float = 0.95) -> int:
    """Return the smallest mixture for which `has_stabilised` tells a settled chain from one whose answers still move.

    A mixture of k - 1 probes must be within half of the tolerance of its distribution, for each set of answers, on both
    sides, and for all 2 k + 1 mixtures: `2 * 2**m * (2 k + 1) * exp(-2 (k - 1) (tolerance / 2)**2)` is at most 1 -
    confidence.

    Reference: Certaindex, arXiv 2412.20993, appendix E, lemma 1, which compares with epsilon / 3.
    """
    rate = 2 * (tolerance / 2) ** 2
    allowed = math.log(1 - confidence)
    low, high = 1, 2
    fails = (num_answers + 1) * math.log(2) - allowed

    def holds(size: int) -> bool:
        return fails + math.log(2 * size + 1) <= rate * (size - 1)

    while not holds(high):
        low, high = high, 2 * high
    return bisect.bisect_left(range(high + 1), True, lo=low, key=holds)


def test_the_page_says_what_the_guarantee_would_need() -> None:
    page = (Path(__file__).parents[4] / "docs" / "algorithms" / "dynasor_cot.md").read_text(encoding="utf-8")
    said = re.search(
        r"needs ([\d,]+) probes with two answers and a tolerance of ([\d.]+), and ([\d,]+) with ([\d.]+\d)", page
    )
    assert said is not None
    first, wide, second, narrow = said.groups()
    for number, tolerance in ((first, wide), (second, narrow)):
        assert probes_needed(2, float(tolerance)) == int(number.replace(",", ""))


@given(st.integers(2, 12), st.floats(0.02, 0.99), st.floats(0.01, 0.999))
def test_one_probe_less_than_needed_breaks_the_bound(num_answers: int, tolerance: float, confidence: float) -> None:
    k = probes_needed(num_answers, tolerance, confidence)
    chances = [2 * 2**num_answers * (2 * n + 1) * math.exp(-2 * (n - 1) * (tolerance / 2) ** 2) for n in (k, k - 1)]
    assert chances[0] <= (1 - confidence) * (1 + 1e-9)
    assert chances[1] >= (1 - confidence) * (1 - 1e-9)
