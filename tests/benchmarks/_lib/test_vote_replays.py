"""Replays of labelled votes by hand, and the search for the cheapest rule."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks._lib.vote_replays import Outcome, cheapest, play, shuffled, tokens_at_once
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule
from scaffolding_ext.controllers.vote.allocation.baselines import Even
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.controllers.vote.allocation.leader_change import Curtailment
from scaffolding_ext.registry import allocation_rules

VOTE = LabelledVote("a", [0, 1, 1, -1, 0, 1], [False, True, True, False, False, True], [10, 20, 30, 40, 50, 60])


def test_a_vote_is_right_if_the_first_sample_of_its_winner_is() -> None:
    assert [VOTE.is_right(size) for size in range(1, 7)] == [False, False, True, True, False, True]
    assert not LabelledVote("b", [-1], [True], [5]).is_right(1)


def test_orders_move_every_column_together() -> None:
    other = LabelledVote("a", [0, 1], [True, False], [3, 4], rewards=[0.1, 0.2], logprobs=[-1.0, -2.0])
    assert other.reordered([1, 0]) == LabelledVote(
        "a", [1, 0], [False, True], [4, 3], rewards=[0.2, 0.1], logprobs=[-2.0, -1.0]
    )


def test_what_runs_beside_is_stopped_with_the_last_that_is_needed() -> None:
    assert tokens_at_once(2, [10, 30, 20, 50]) == 10 + 30 + 20 + 30


@given(lengths=st.lists(st.integers(1, 99), min_size=1, max_size=9), data=st.data())
def test_starting_all_at_once_never_decodes_fewer_tokens_than_drawing_what_is_needed(
    lengths: list[int], data: st.DataObject
) -> None:
    num_samples = data.draw(st.integers(1, len(lengths)))
    assert sum(lengths[:num_samples]) <= tokens_at_once(num_samples, lengths) <= sum(lengths)


def test_figures_are_means_over_a_questions_orders() -> None:
    outcome = play(Even(num_samples=3), [[VOTE, VOTE.reordered([5, 4, 3, 2, 1, 0])]])
    assert outcome.sizes.tolist() == [[3, 3]]
    assert outcome.correct.tolist() == [1.0]  # 0 1 1, and 1 0 -1, where the first of the tied wins
    assert outcome.tokens.tolist() == [(60 + 150) / 2]
    assert outcome.critical_length.tolist() == [(30 + 60) / 2]
    assert outcome.changed.tolist() == [0.0]
    assert outcome.stopped.tolist() == [1.0]
    assert outcome.num_rounds.tolist() == [1.0]


def test_shuffled_orders_are_the_same_for_the_same_generator() -> None:
    first, second = (shuffled([VOTE], 3, np.random.default_rng(1)) for _ in range(2))
    assert first == second
    assert sorted(first[0][0].lengths) == sorted(VOTE.lengths)


def outcomes(correct: dict[int, list[float]]) -> dict[AllocationRule, Outcome]:
    """`Even` rules of so many samples, each with its accuracies and 10 tokens a sample."""
    made: dict[AllocationRule, Outcome] = {}
    for number, shares in correct.items():
        ones = np.ones(len(shares))
        made[Even(num_samples=number)] = Outcome(
            np.array(shares), number * ones, ones, 10.0 * number * ones, ones, ones, ones, ones, np.ones((1, 1), int)
        )
    return made


def test_the_cheapest_within_the_loss_is_taken() -> None:
    full = np.array([1.0, 1.0])
    made = outcomes({8: [1.0, 1.0], 4: [1.0, 0.9], 2: [0.8, 0.8]})
    assert cheapest(made, full, 0.0) == Even(num_samples=8)
    assert cheapest(made, full, 0.05) == Even(num_samples=4)
    assert cheapest(made, full, 0.5) == Even(num_samples=2)
    assert cheapest(made, full, 0.0, questions=[0]) == Even(num_samples=4)


def test_where_none_is_within_the_loss_the_one_that_loses_least_is_taken() -> None:
    made = outcomes({4: [0.5, 0.5], 2: [0.8, 0.8]})
    assert cheapest(made, np.array([1.0, 1.0]), 0.0) == Even(num_samples=2)
    with pytest.raises(ValueError, match="no rule"):
        cheapest({}, np.array([1.0]), 0.0)


def test_every_setting_of_every_list_plays() -> None:
    scored = dataclasses.replace(VOTE, rewards=[0.1, 0.9, 0.4, 0.3, 0.8, 0.2])
    plain, made = (
        {
            name: [kind(**args) for args in own]
            for kind in map(allocation_rules.resolve, allocation_rules.names())
            for name, own in kind.settings_to_try([vote]).items()
        }
        for vote in (VOTE, scored)
    )
    orders = shuffled([scored], 2, np.random.default_rng(0))
    assert {"curtailment", "LeaderChange", "certaindex, step 2", "curve at 2"} <= plain.keys()
    rewarded = made.keys() - plain.keys()
    assert {"certaindex, knob 2, rewards", "certaindex, step 2, rewards"} <= rewarded
    assert all("rewards" in rule.looks_at for name in rewarded for rule in made[name])
    for rules in made.values():
        assert rules
        assert rules[0].is_fitted or len(set(rules)) == len(rules)
        for rule in rules:
            assert play(rule, orders).num_samples[0] <= 6
    assert play(Curtailment(leap=1.0), orders).changed[0] == 0
