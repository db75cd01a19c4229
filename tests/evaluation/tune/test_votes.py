"""Votes that are replayed all at once agree with votes that are replayed one by one, rule by rule."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.controllers.vote.allocation.adaptive_consistency import BetaConsistency
from scaffolding_ext.controllers.vote.allocation.agreement import AgreementDoubling, EarlyStoppingWindow
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.controllers.vote.allocation.baselines import Even, LengthThreshold
from scaffolding_ext.controllers.vote.allocation.leader_change import Curtailment, LeaderChange
from scaffolding_ext.controllers.vote.allocation.skyline import Curve, DynamicSkyline, InitialStepSkyline
from scaffolding_ext.controllers.vote.allocation.threshold import StaticThreshold, ThresholdEvery
from scaffolding_ext.controllers.vote.voting import elect
from scaffolding_ext.evaluation.tune.costs import EndedSamples
from scaffolding_ext.evaluation.tune.orders import OrderedVotes, draw_orders
from scaffolding_ext.evaluation.tune.rolling import ReplayedFlight
from scaffolding_ext.evaluation.tune.votes import ReplayResult, play

CURVE = Curve((1.0, 0.5), (3, 5))
RULES: list[AllocationRule | None] = [
    None,
    Even(num_samples=3),
    LeaderChange(),
    LeaderChange(leap=2.0, give_up=True),
    Curtailment(leap=1.0),
    Curtailment(),
    BetaConsistency(confidence=0.8),
    AgreementDoubling(),
    EarlyStoppingWindow(window=2),
    StaticThreshold(knob=2),
    ThresholdEvery(step=2),
    InitialStepSkyline(knob=2, curve=CURVE),
    DynamicSkyline(knobs=(2, 4), curves=(CURVE, CURVE)),
    LengthThreshold(max_mean_length=60, knob=2),
]


def samples_of(classes: list[list[int]], seed: int = 0) -> EndedSamples:
    """Samples of questions whose right answer is class 0."""
    array = np.array(classes)
    rng = np.random.default_rng(seed)
    tokens = rng.integers(20, 100, array.shape)
    costs = {"decoded": tokens.astype(float), "critical": tokens.astype(float), "dollars": tokens + 1.0}
    once = {"dollars": np.full(len(array), 7.0)}
    weights = {"mean_logprob": rng.random(array.shape)}
    return EndedSamples(array, array == 0, tokens, costs, once, weights)


def by_hand(votes: OrderedVotes, rule: AllocationRule | None, num_samples: int) -> dict[str, np.ndarray]:
    """The same votes, drawn one after the other."""
    rows: dict[str, list[float]] = {
        name: [] for name in ("right", "decoded", "critical", "dollars", "rounds", "samples")
    }
    samples = votes.samples
    for order in votes.orders:
        for question, own in enumerate(order):
            classes, tokens = samples.classes[question, own].tolist(), samples.tokens[question, own].tolist()
            drawn = rounds = critical = 0
            while True:
                weights = None
                if votes.weight is not None:
                    weights = samples.weights[votes.weight][question, own[:drawn]].tolist()
                seen = Votes(classes[:drawn], num_samples, lengths=tokens[:drawn], weights=weights)
                more = num_samples - drawn if rule is None else rule.num_more(seen)
                if not more:
                    break
                critical += max(tokens[drawn : drawn + more])
                drawn, rounds = drawn + more, rounds + 1
            weights = None if votes.weight is None else samples.weights[votes.weight][question, own[:drawn]].tolist()
            winner, first = elect(classes[:drawn], weights)
            right = winner != -1 and samples.correct[question, own[first]]
            decoded = sum(tokens[:drawn])
            values = (right, decoded, critical, decoded + drawn + 7, rounds, drawn)
            for name, value in zip(rows, values, strict=True):
                rows[name].append(float(value))
    shape = len(votes.orders), votes.num_questions
    return {name: np.reshape(values, shape).mean(axis=0) for name, values in rows.items()}


def assert_equal(played: ReplayResult, expected: dict[str, np.ndarray]) -> None:
    found = {"right": played.right, "rounds": played.rounds, "samples": played.samples, **played.costs}
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, err_msg=name)


CLASSES = st.lists(st.lists(st.integers(-1, 3), min_size=6, max_size=6), min_size=1, max_size=5)


@settings(max_examples=150, deadline=None)
@given(rule=st.sampled_from(RULES), classes=CLASSES, num_samples=st.integers(1, 6), seed=st.integers(0, 5))
def test_all_votes_at_once_are_the_votes_one_by_one(
    rule: AllocationRule | None, classes: list[list[int]], num_samples: int, seed: int
) -> None:
    votes = OrderedVotes(samples_of(classes, seed), draw_orders(len(classes), 6, np.random.default_rng(seed), 3))
    full_right = votes.right[:, -1].astype(float)
    assert_equal(play(votes, rule, num_samples, full_right), by_hand(votes, rule, num_samples))


@settings(max_examples=40, deadline=None)
@given(rule=st.sampled_from([None, AgreementDoubling(), Even(num_samples=3)]), classes=CLASSES, seed=st.integers(0, 5))
def test_weighed_votes_are_the_weighed_votes_one_by_one(
    rule: AllocationRule | None, classes: list[list[int]], seed: int
) -> None:
    orders = draw_orders(len(classes), 6, np.random.default_rng(seed), 2)
    votes = OrderedVotes(samples_of(classes, seed), orders, "mean_logprob")
    assert_equal(play(votes, rule, 6, votes.right[:, -1].astype(float)), by_hand(votes, rule, 6))


def test_a_right_full_vote_that_is_missed_is_lost() -> None:
    votes = OrderedVotes(samples_of([[1, 0, 0], [0, 1, 1]]), np.arange(3)[None, None].repeat(2, axis=1))
    played = play(votes, None, 1, votes.right[:, -1].astype(float))
    assert played.right.tolist() == [0, 1]
    assert played.lost.tolist() == [1, 0]  # the second full vote was wrong: an answer that is right loses nothing


def test_the_first_to_finish_vote_and_the_others_are_stopped() -> None:
    classes = np.array([[1, 0, 0, 1]])
    tokens = np.array([[50, 10, 20, 90]])
    costs = {name: tokens.astype(float) for name in ("decoded", "critical")}
    votes = OrderedVotes(EndedSamples(classes, classes == 0, tokens, costs, {}, {}), np.arange(4)[None, None])
    flight = ReplayedFlight(votes, 4, 4, "arrival")
    played = flight.play(flight.sizes(Even(num_samples=2)), np.array([1.0]))
    assert played.right.tolist() == [1.0]
    assert played.costs["decoded"].tolist() == [10 + 20 + 20 + 20]
    assert played.costs["critical"].tolist() == [20]
    assert (played.rounds.tolist(), played.samples.tolist()) == ([1.0], [2.0])


@settings(max_examples=50, deadline=None)
@given(classes=st.lists(st.integers(-1, 2), min_size=5, max_size=5))
def test_the_oracle_stops_where_no_later_vote_differs(classes: list[int]) -> None:
    votes = OrderedVotes(samples_of([classes]), np.arange(5)[None, None])
    winners = [elect(classes[:num]).winner for num in range(1, 6)]
    fewest = next(num for num in range(1, 6) if set(winners[num - 1 :]) == {winners[-1]})
    assert votes.until_settled.tolist() == [fewest]
