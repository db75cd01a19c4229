"""Votes and confidences against counting by hand."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaffolding_ext.controllers.vote.trace_confidence import filtered_weights
from scaffolding_ext.controllers.vote.voting import vote

classes = st.lists(st.integers(-1, 4), max_size=20)


@given(votes=classes)
def test_the_first_of_the_most_frequent_wins(votes: list[int]) -> None:
    counts = Counter(number for number in votes if number != -1)
    winner = vote(votes)
    if not counts:
        assert winner == -1
    else:
        best = [number for number in votes if counts[number] == max(counts.values())]
        assert winner == best[0]
    assert vote(votes, [1.0] * len(votes)) == winner


def test_weights_decide() -> None:
    assert vote([0, 1, 1, 0], [0.9, 0.3, 0.3, 0.1]) == 0
    assert vote([0, 1, 1], [0.5, 0.3, 0.3]) == 1
    assert vote([-1, 1], [9.0, 0.0]) == 1


@given(values=st.lists(st.floats(0, 10), min_size=1, max_size=20), share=st.floats(0.01, 1))
def test_the_kept_are_the_most_confident(values: list[float], share: float) -> None:
    values = [value + 1 for value in values]  # so that no kept trace weighs nothing
    weights = filtered_weights([0] * len(values), values, share)
    inside = [weight for weight in weights if weight]
    outside = [value for value, weight in zip(values, weights, strict=True) if not weight]
    assert all(weight in (0.0, value) for value, weight in zip(values, weights, strict=True))
    assert 1 <= len(inside) <= len(values)
    assert min(inside) >= max(outside, default=0)
    assert share * len(values) - 1e-6 <= len(inside) < max(2, share * len(values) + 1)


def test_of_equals_the_earlier_is_kept() -> None:
    assert filtered_weights([0, 1, 0, 1], [2.0, 2.0, 2.0, 2.0], 0.5) == [2.0, 2.0, 0.0, 0.0]


def filtered_vote(classes: list[int], confidences: list[float], keep_share: float) -> int:
    return vote(classes, filtered_weights(classes, confidences, keep_share))


def test_the_filtered_vote_hears_only_the_confident() -> None:
    assert vote([0, 0, 0, 1]) == 0
    assert filtered_vote([0, 0, 0, 1], [1, 1, 1, 5], 0.25) == 1
    assert filtered_vote([-1, 0], [9, 1], 0.5) == 0
    assert filtered_vote([-1], [9], 0.5) == -1
    assert filtered_weights([], [], 0.5) == []


def test_malformed_votes_are_refused() -> None:
    with pytest.raises(ValueError, match="1 weights for 2 samples"):
        vote([0, 1], [1.0])
    with pytest.raises(ValueError, match="weight 1: is -1"):
        vote([0, 1], [1.0, -1.0])
    with pytest.raises(ValueError, match="weight 0: is nan"):
        vote([0], [float("nan")])
    with pytest.raises(ValueError, match="2 confidences for 1 traces"):
        filtered_weights([0], [1.0, 2.0], 0.5)
    with pytest.raises(ValueError, match="keep_share: is 0"):
        filtered_weights([0], [1.0], 0)
