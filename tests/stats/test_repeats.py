"""pass@k and the vote of k against brute force."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaffolding_ext.stats.repeats import majority_at_k, pass_at_k

ATTEMPTS = st.lists(st.integers(-1, 2), min_size=1, max_size=6)


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_right_attempt(correct: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(correct)))
    subsets = list(itertools.combinations(correct, k))
    assert pass_at_k([correct], k)[0] == pytest.approx(sum(map(any, subsets)) / len(subsets))


@given(ATTEMPTS, st.data())
def test_the_vote_of_k_is_the_share_of_subsets_that_elect_the_right_class(
    classes: list[int], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(classes)))
    subsets = list(itertools.combinations(classes, k))

    def elects_zero(votes: tuple[int, ...]) -> bool:
        counted = Counter(vote for vote in votes if vote >= 0)
        return bool(counted) and max(counted, key=lambda vote: (counted[vote], -votes.index(vote))) == 0

    expected = sum(map(elects_zero, subsets)) / len(subsets)
    right = [number == 0 for number in classes]
    assert majority_at_k([classes], [right], k, rng=np.random.default_rng(0))[0] == pytest.approx(expected)


def test_drawn_subsets_come_near_all_of_them() -> None:
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 3, (400, 12))
    drawn = majority_at_k(classes, classes == 0, 6, rng=rng, num_subsets=64)
    exact = majority_at_k(classes, classes == 0, 6, rng=rng, num_subsets=math.comb(12, 6))
    assert abs(drawn.mean() - exact.mean()) < 4 * math.sqrt(0.25 / 64)  # the subsets are the same for all questions
    assert np.abs(drawn - exact).max() < 0.5


def test_wrong_shapes_and_ks_are_refused() -> None:
    rng = np.random.default_rng(0)
    for k in (0, 3):
        with pytest.raises(ValueError, match="k: is"):
            pass_at_k([[True, False]], k)
    with pytest.raises(ValueError, match="correct has shape"):
        pass_at_k([True], 1)
    with pytest.raises(ValueError, match="one entry per attempt"):
        majority_at_k([[1]], [[True, False]], 1, rng=rng)
