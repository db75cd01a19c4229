"""Ways to answer on recorded chains: stopped chains and cuts by hand, votes beside each other."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from benchmarks._lib.interval_controllers import Chain, Played
from benchmarks.studies.autotts import Asked, Shuffled, agreeing, cut, ended
from scaffolding_ext.controllers.vote.allocation.baselines import Even
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange

RNG = np.random.default_rng(0)


def asked(number: int) -> Asked:
    """A question whose class 0 is right."""
    answers = np.where(RNG.random(16) < RNG.uniform(0.4, 1), 0, RNG.integers(1, 5, 16)).tolist()
    lengths = RNG.integers(1_000, 6_000, 16).tolist()
    return Asked("4B", "aime25", str(number), 0, list(map(Chain, answers, lengths)))


ASKED = [asked(number) for number in range(6)]
PLAYS = Shuffled(ASKED, 16, 1, 0)
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
    assert whole.decoded[0] == np.mean([chain.num_tokens for chain in first])
    assert whole.right[0] == np.mean([chain.answer == ASKED[0].target for chain in first])


def test_flights_by_index_answer_as_one_by_one_sampling() -> None:
    rule = LeaderChange()
    one_by_one = PLAYS.in_rounds(dataclasses.replace(rule, leap=0.0))
    by_index = PLAYS.in_flight(rule, 4, "index")
    np.testing.assert_array_equal(by_index.right, one_by_one.right)
    np.testing.assert_array_equal(PLAYS.in_flight(rule, 1), one_by_one)
    assert by_index.path.sum() < one_by_one.path.sum()


def test_all_chains_at_once_take_as_long_as_the_longest() -> None:
    every = PLAYS.in_rounds(Even(num_samples=16))
    np.testing.assert_array_equal(every.path, [max(chain.num_tokens for chain in each.chains) for each in ASKED])
    np.testing.assert_array_equal(PLAYS.first_to_finish(16)[1:], every[1:])
    assert (PLAYS.at_once(LeaderChange(miss=0.0), 16).path <= every.path).all()


def test_the_first_to_finish_are_the_shortest_and_the_others_are_cut_there() -> None:
    few = PLAYS.first_to_finish(3)
    for number, each in enumerate(ASKED):
        lengths = sorted(chain.num_tokens for chain in each.chains)
        assert few.path[number] == lengths[2]
        assert few.tokens[number] == sum(min(length, lengths[2]) for length in lengths)


def test_a_controller_sees_the_chains_of_the_votes_in_their_order() -> None:
    first = PLAYS.by(lambda chains: Played(chains[0].answer, chains[0].num_tokens, chains[0].num_tokens))
    np.testing.assert_array_equal(first, PLAYS.in_rounds(Even(num_samples=1)))


def test_the_plain_vote_of_as_many_tokens_is_the_nearest() -> None:
    five = PLAYS.in_rounds(Even(num_samples=5))
    np.testing.assert_array_equal(PLAYS.plain(float(five.tokens.mean()) + 1), five)
