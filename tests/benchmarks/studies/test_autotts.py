"""Ways to answer on recorded chains: stopped chains and cuts by hand, votes beside each other."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from benchmarks._lib.interval_controllers import Chain
from benchmarks.studies.autotts import (
    WEIGHTS,
    Replay,
    agreeing,
    cut,
    ended,
    first_to_finish,
    in_rounds,
    rolling,
    simulated,
)
from scaffolding_ext.controllers.vote.allocation.baselines import Even
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange

ASKED = list(simulated(2, np.random.default_rng(0), num_chains=16))
VOTES = [question.chains for question in ASKED]
CHAIN = Chain(3, 2_900, (9, 9, 9, 1, 1))  # 9 is no answer


def test_a_chain_stops_at_equal_answers_in_a_row_and_never_at_no_answer() -> None:
    assert agreeing(2)(CHAIN, 9) == (1, 2_500)
    assert agreeing(2)(CHAIN, -1) == (9, 1_000)
    assert agreeing(3)(CHAIN, 9) == (3, 2_900)


@pytest.mark.parametrize(
    ("num_probes", "answer", "num_tokens"), [(1, 9, 500), (4, 1, 2_000), (5, 1, 2_500), (6, 3, 2_900)]
)
def test_a_cut_takes_the_answer_asked_for_there(num_probes: int, answer: int, num_tokens: int) -> None:
    assert cut(num_probes)(CHAIN, 9) == (answer, num_tokens)


def test_means_of_a_question_are_over_all_of_its_chains() -> None:
    whole = ended(ASKED, lambda chain, no_answer: (chain.answer, chain.num_tokens))
    first = ASKED[0].chains
    assert whole.tokens[0] == np.mean([chain.num_tokens for chain in first])
    assert whole.right[0] == np.mean([chain.answer == ASKED[0].target for chain in first])
    mixed = whole.mixed(ended(ASKED, cut(1)), 0.25)
    assert mixed.tokens[0] == 0.75 * whole.tokens[0] + 0.25 * 500


def test_equal_weights_are_no_weights() -> None:
    rule = LeaderChange()
    assert in_rounds(rule, np.ones_like)(VOTES) == in_rounds(rule)(VOTES)


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_by_length_have_no_unit(name: str) -> None:
    lengths = np.array([100.0, 200.0, 400.0, 10_000.0])
    weights, scaled = WEIGHTS[name](lengths), WEIGHTS[name](7 * lengths)
    np.testing.assert_allclose(weights / weights.sum(), scaled / scaled.sum())
    assert (np.diff(weights) < 0).all()


def test_flights_by_index_answer_as_one_by_one_sampling() -> None:
    rule = LeaderChange()
    one_by_one = in_rounds(dataclasses.replace(rule, leap=0.0))(VOTES)
    by_index = rolling(rule, 4, "index")(VOTES)
    assert [each.answer for each in by_index] == [each.answer for each in one_by_one]
    assert rolling(rule, 1, "tokens")(VOTES) == one_by_one
    assert sum(each.path for each in by_index) < sum(each.path for each in one_by_one)


def test_a_flight_of_all_samples_takes_as_long_as_the_first_that_settle_it() -> None:
    every = rolling(LeaderChange(miss=0.0), 16, "tokens")(VOTES)
    assert all(
        each.path <= max(chain.num_tokens for chain in chains) for each, chains in zip(every, VOTES, strict=True)
    )
    first, whole = first_to_finish(16)(VOTES), in_rounds(Even(num_samples=16))(VOTES)
    assert [each[1:] for each in first] == [each[1:] for each in whole]


def test_questions_are_taken_by_model_and_by_task() -> None:
    plays = Replay(ASKED, 8, 1, 0)
    assert plays.of().all()
    assert plays.of(models=["4B"]).sum() == 6
    assert plays.of(models=["4B"], tasks=["aime24"]).sum() == 2
