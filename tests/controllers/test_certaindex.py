"""Certaindex against the table of its paper, brute force, and the properties that a threshold relies on."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaffolding_ext.controllers.certaindex import (
    Threshold,
    entropy_certaindex,
    is_certain,
    measure_value,
    reward_certaindex,
    window_consistency,
)

classes = st.lists(st.integers(-1, 4), max_size=20)


@pytest.mark.parametrize(
    ("votes", "value"),
    [
        ([0, 0, 0, 0, 0], 1.0),
        ([0, 0, 0, 0, 1], 0.689),
        ([0, 0, 0, 1, 1], 0.582),
        ([0, 0, 0, 1, 2], 0.410),
        ([0, 0, 1, 1, 2], 0.345),
        ([0, 1, 2, 3, 4], 0.0),
    ],
)
def test_five_samples_give_the_values_of_the_paper(votes: list[int], value: float) -> None:
    assert entropy_certaindex(votes) == pytest.approx(value, abs=5e-4)


@given(votes=st.lists(st.integers(0, 5), min_size=2, max_size=30))
def test_entropy_form_is_the_definition(votes: list[int]) -> None:
    shares = [votes.count(number) / len(votes) for number in set(votes)]
    entropy = -sum(share * math.log(share) for share in shares)
    log_n = math.log(len(votes))
    assert entropy_certaindex(votes) == pytest.approx((log_n - entropy) / log_n, abs=1e-9)


@given(votes=classes)
def test_entropy_form_lies_in_the_unit_interval_whatever_the_order_and_the_numbering(votes: list[int]) -> None:
    value = entropy_certaindex(votes)
    assert 0 <= value <= 1
    renamed = [number if number == -1 else 10 - number for number in reversed(votes)]
    assert entropy_certaindex(renamed) == pytest.approx(value)


@pytest.mark.parametrize("votes", [[], [0], [-1], [-1, 0, -1]])
def test_fewer_than_two_answers_are_not_certain(votes: list[int]) -> None:
    assert entropy_certaindex(votes) == 0


@pytest.mark.parametrize(
    ("votes", "min_answers", "value"),
    [([0, 0, -1, -1, -1], 3, 0.0), ([0, 0, -1, -1, -1], 2, 1.0), ([0, 0, 0, -1], 3, 1.0), ([0, 0], 3, 1.0)],
)
def test_nothing_is_settled_by_too_few_answers(votes: list[int], min_answers: int, value: float) -> None:
    assert entropy_certaindex(votes, min_answers) == value
    assert is_certain((Threshold("max_reward", 0.5),), votes, [1.0], min_answers) is (value == 1.0)


@pytest.mark.parametrize(
    ("votes", "window", "share"),
    [([], 3, 0.0), ([2], 3, 1 / 3), ([2, 1, 2, 2], 3, 2 / 3), ([1, 1, 1, 1], 3, 1.0), ([1, 1, -1], 3, 0.0)],
)
def test_window_consistency(votes: list[int], window: int, share: float) -> None:
    assert window_consistency(votes, window) == pytest.approx(share)


def test_rewards_are_averaged_or_the_best_is_taken() -> None:
    assert reward_certaindex([0.2, 0.6, 0.4], "mean") == pytest.approx(0.4)
    assert reward_certaindex([0.2, 0.6, 0.4], "max") == 0.6
    assert reward_certaindex([], "max") == 0


def test_every_measure_must_reach_its_threshold() -> None:
    thresholds = (Threshold("entropy", 0.99), Threshold("mean_reward", 0.4))
    assert is_certain(thresholds, [0, 0, 0], [0.4, 0.5, 0.6])
    assert not is_certain(thresholds, [0, 0, 0], [0.1, 0.2, 0.3])
    assert not is_certain(thresholds, [0, 0, 1], [0.4, 0.5, 0.6])
    assert is_certain((Threshold("max_reward", 0.9),), [0, 1], [0.1, 0.9])


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="needs the paths' rewards"):
        measure_value("max_reward", [0, 0])
    with pytest.raises(ValueError, match=r"measure: is .*; choose one of entropy, mean_reward, max_reward"):
        measure_value("variance", [0, 0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no thresholds"):
        is_certain((), [0, 0])
    with pytest.raises(ValueError, match="normalise them"):
        reward_certaindex([1.5], "mean")
    with pytest.raises(ValueError, match="choose mean or max"):
        reward_certaindex([0.5], "median")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="window: is 0"):
        window_consistency([1], 0)
