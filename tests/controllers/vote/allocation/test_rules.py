"""Properties of every allocation rule, and each rule against counting by hand or brute force."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.controllers.certaindex import Threshold
from scaffolding_ext.controllers.vote.allocation.adaptive_consistency import (
    BetaConsistency,
    beta_probability,
)
from scaffolding_ext.controllers.vote.allocation.agreement import AgreementDoubling, EarlyStoppingWindow
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, SequentialRule, Votes, standing_of
from scaffolding_ext.controllers.vote.allocation.baselines import Even, LengthThreshold
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.controllers.vote.allocation.leader_change import Curtailment, LeaderChange
from scaffolding_ext.controllers.vote.allocation.skyline import (
    Curve,
    DynamicSkyline,
    InitialStepSkyline,
    fit_curve,
)
from scaffolding_ext.controllers.vote.allocation.threshold import StaticThreshold, ThresholdEvery
from scaffolding_ext.controllers.vote.allocation.value_of_vote import ValueOfVote
from scaffolding_ext.controllers.vote.voting import vote
from tests.rounds import replay

CURVE = Curve((1.0, 0.5, 0.0), (3, 6, 9))
SEQUENTIAL: tuple[SequentialRule, ...] = (
    Curtailment(),
    BetaConsistency(),
    BetaConsistency(confidence=0.8, min_samples=2),
    BetaConsistency(confidence=0.9, give_up=True),
    LeaderChange(leap=0.0, miss=0.1),
    LeaderChange(leap=0.0, miss=0.02, concentration=3.0, give_up=True),
)
RULES: tuple[AllocationRule, ...] = (
    *SEQUENTIAL,
    *(replace(rule, leap=1.0) for rule in SEQUENTIAL),
    LeaderChange(),
    StaticThreshold(),
    ThresholdEvery(threshold=0.8, step=2),
    EarlyStoppingWindow(window=4),
    AgreementDoubling(),
    Even(num_samples=7),
    LengthThreshold(max_mean_length=50.0),
    ValueOfVote(price=100.0),
    InitialStepSkyline(knob=3, curve=CURVE),
    DynamicSkyline(knobs=(3, 6), curves=(CURVE, CURVE)),
)
full_votes = st.lists(st.integers(-1, 3), min_size=1, max_size=14)


@pytest.mark.parametrize("rule", RULES, ids=repr)
@settings(max_examples=40, deadline=None)
@given(classes=full_votes)
def test_every_rule_ends_within_the_samples_there_are(rule: AllocationRule, classes: list[int]) -> None:
    outcome = replay(rule, classes, lengths=[10] * len(classes))
    assert 1 <= outcome.num_samples <= len(classes)
    assert 1 <= outcome.num_rounds <= outcome.num_samples
    assert outcome.critical_length == 10 * outcome.num_rounds
    assert rule.num_more(Votes(classes, len(classes), lengths=[10] * len(classes))) == 0


@pytest.mark.parametrize("rule", SEQUENTIAL, ids=repr)
@settings(max_examples=50, deadline=None)
@given(classes=full_votes)
def test_leaping_saves_rounds_and_costs_no_sample(rule: SequentialRule, classes: list[int]) -> None:
    one_by_one, leaping = replay(rule, classes), replay(replace(rule, leap=1.0), classes)
    assert leaping.num_samples == one_by_one.num_samples
    assert leaping.num_rounds <= one_by_one.num_rounds


@settings(max_examples=100, deadline=None)
@given(classes=full_votes)
def test_longer_leaps_never_stop_sooner(classes: list[int]) -> None:
    single, double = (replay(LeaderChange(leap=leap), classes) for leap in (1.0, 2.0))
    assert double.num_samples >= single.num_samples


@settings(max_examples=200, deadline=None)
@given(classes=st.lists(st.integers(-1, 2), min_size=1, max_size=12))
def test_curtailment_never_changes_the_winner(classes: list[int]) -> None:
    num_samples = replay(Curtailment(), classes).num_samples
    assert vote(classes[:num_samples]) == vote(classes)


@settings(max_examples=200, deadline=None)
@given(
    ballots=st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 8)), min_size=1, max_size=12), leap=st.floats(0, 2)
)
def test_curtailment_never_changes_the_winner_of_a_weighted_vote(ballots: list[tuple[int, int]], leap: float) -> None:
    classes, weights = [number for number, _ in ballots], [weight / 8 for _, weight in ballots]
    rule, num_drawn, num_more = Curtailment(leap=leap), 0, 1
    while num_more:
        seen = Votes(classes[:num_drawn], len(classes), weights=weights[:num_drawn], most_weight=1.0)
        num_more = rule.num_more(seen)
        num_drawn += num_more
    assert vote(classes[:num_drawn], weights[:num_drawn]) == vote(classes, weights)


@settings(max_examples=40, deadline=None)
@given(seen=st.lists(st.integers(0, 2), min_size=1, max_size=5), num_remaining=st.integers(1, 4))
def test_curtailment_stops_exactly_when_no_continuation_changes_the_winner(seen: list[int], num_remaining: int) -> None:
    endings = itertools.product((0, 1, 2, 7), repeat=num_remaining)
    safe = all(vote([*seen, *ending]) == vote(seen) for ending in endings)
    assert Curtailment().is_certain(standing_of(Votes(seen, len(seen) + num_remaining))) is safe


def test_beta_rule_is_the_integral_of_the_paper() -> None:
    x = np.linspace(0.5, 1, 200_001)
    for lead, runner_up in ((4, 0), (5, 1), (7, 3), (3, 3)):
        density = x**lead * (1 - x) ** runner_up
        area = float(np.sum((density[1:] + density[:-1]) / 2) * (x[1] - x[0]))
        norm = math.gamma(lead + 1) * math.gamma(runner_up + 1) / math.gamma(lead + runner_up + 2)
        assert beta_probability(lead, runner_up) == pytest.approx(area / norm, abs=1e-8)


def test_four_agreeing_samples_satisfy_the_beta_rule_at_its_default() -> None:
    assert [beta_probability(n, 0) >= 0.95 for n in (3, 4)] == [False, True]
    assert replay(BetaConsistency(), [0] * 16).num_samples == 4
    assert replay(BetaConsistency(leap=1.0), [0] * 16) == (4, 1, 0)


@pytest.mark.parametrize(
    ("rule", "classes", "num_samples", "num_rounds"),
    [
        (StaticThreshold(threshold=0.68, knob=5), [0, 0, 0, 0, 1, *[0] * 11], 5, 1),
        (StaticThreshold(threshold=0.7, knob=5), [0, 0, 0, 0, 1, *[0] * 11], 16, 2),
        (ThresholdEvery(threshold=0.7, step=4), [0, 0, 1, 0, *[0] * 12], 8, 2),
        (EarlyStoppingWindow(window=4), [0, 0, 1, 0, 0, 0, 0, 0, 1, 1], 8, 2),
        (EarlyStoppingWindow(window=4), [-1, -1, -1, -1, 0, 0, 0, 0, 1, 1], 8, 2),
        (AgreementDoubling(), [0, 1, 0, 0, 0, 0, 0, 0, 1, 1], 4, 2),
        (AgreementDoubling(), [0, 0, 1, 1], 2, 1),
        (AgreementDoubling(), [0, 1, 1, 0, 2, 2, 2, 2, 2], 9, 4),
        (Even(num_samples=6), [0] * 10, 6, 1),
        *((Even(), [0] * width, width, 1) for width in (4, 16, 40)),
        (InitialStepSkyline(knob=3, curve=CURVE), [0, 0, 0, *[1] * 9], 3, 1),
        (InitialStepSkyline(knob=3, curve=CURVE), [0, 0, 1, *[1] * 9], 9, 2),
        (DynamicSkyline(knobs=(3, 6), curves=(CURVE, CURVE)), [0, 0, 1, 0, 0, 0, 0, 0, 0, 0], 6, 2),
    ],
)
def test_rules_by_hand(rule: AllocationRule, classes: list[int], num_samples: int, num_rounds: int) -> None:
    outcome = replay(rule, classes)
    assert (outcome.num_samples, outcome.num_rounds) == (num_samples, num_rounds)


def test_length_rule_stops_where_answers_are_short() -> None:
    rule = LengthThreshold(max_mean_length=10, knob=2)
    assert replay(rule, [0, 1, 0, 0], lengths=[9, 11, 9, 9]) == (2, 1, 11)
    assert replay(rule, [0, 1, 0, 0], lengths=[12, 11, 9, 7]) == (4, 2, 21)
    with pytest.raises(ValueError, match="carry no lengths"):
        rule.num_more(Votes([0, 1], 4))


def test_rewards_must_agree_too_where_they_are_asked_for() -> None:
    rule = ThresholdEvery(threshold=0.9, step=2, reward_thresholds=(Threshold("mean_reward", 0.5),))
    assert rule.num_more(Votes([0, 0], 8, rewards=[0.4, 0.8])) == 0
    assert rule.num_more(Votes([0, 0], 8, rewards=[0.1, 0.2])) == 2


def test_a_question_without_answers_is_given_up_and_an_answer_brings_it_back() -> None:
    rule = BetaConsistency(confidence=0.9, give_up=True)
    assert replay(rule, [-1] * 16).num_samples == 3
    assert replay(BetaConsistency(confidence=0.9), [-1] * 16).num_samples == 16
    assert replay(rule, [-1, -1, 0, *[-1] * 13]).num_samples == 16
    assert replay(rule, [-1, -1, 0, 0, 0, 0]).num_samples == 5


def labelled(classes: list[int], right: int = 0) -> LabelledVote:
    """A vote in which one class is right."""
    return LabelledVote("", classes, [number == right for number in classes], [10] * len(classes))


@given(classes=st.lists(st.integers(-1, 2), min_size=1, max_size=12))
def test_samples_needed_by_definition(classes: list[int]) -> None:
    needed = labelled(classes).samples_needed()
    if vote(classes) != 0:
        assert needed is None
        return
    assert needed is not None
    assert all(vote(classes[:size]) == 0 for size in range(needed, len(classes) + 1))
    assert needed == 1 or vote(classes[: needed - 1]) != 0


def test_a_curve_falls_with_certainty() -> None:
    votes = [labelled([0] * 8), labelled([0, 0, 1, 0, 0, 0, 0, 0])]
    votes += [labelled([0, 1, 1, 0, 0, 0, 0, 0]), labelled([0, 1, 2, 2, 2, 2, 2, 2], right=2)]
    wrong = labelled([0, 0, 0, 1, 1, 1, 1, 1])  # certain after 3, and wrong in the end whatever is drawn
    curve = fit_curve([*votes, wrong], 3, 1.0)
    assert curve == fit_curve(votes, 3, 1.0)
    assert curve.certaindex == pytest.approx((1.0, 2 * math.log(2) / (3 * math.log(3)), 0.0))
    assert curve.num_samples == (3, 4, 4)  # a tie at 4 goes to the earlier class
    assert (curve.allocated(1.0), curve.allocated(0.9), curve.allocated(-1.0)) == (3, 4, 4)
    with pytest.raises(ValueError, match="fewer than the knob 9"):
        fit_curve(votes, 9, 1.0)
    with pytest.raises(ValueError, match="quantile 0"):
        fit_curve(votes, 3, 0)
    with pytest.raises(ValueError, match="none of 1 votes is right with all its samples"):
        fit_curve([wrong], 3, 1.0)
    assert InitialStepSkyline.search_space([wrong]) == DynamicSkyline.search_space([wrong]) == {}
    assert DynamicSkyline.search_space([labelled([0, 0])]) == {}  # no look is left before the last sample


@pytest.mark.parametrize(
    ("rule", "classes", "stops"),
    [
        (StaticThreshold(knob=5), [0, 0, -1, -1, -1], False),  # two equal answers among five
        (StaticThreshold(knob=5, min_answers=2), [0, 0, -1, -1, -1], True),
        (StaticThreshold(knob=5), [0, 0, 0, -1, -1], True),
        (ThresholdEvery(step=2), [0, 0], True),  # all that were drawn have an answer
        (ThresholdEvery(step=2), [0, 0, -1, -1], False),
        (AgreementDoubling(), [0, -1, 0, -1], False),
        (AgreementDoubling(min_answers=1), [0, -1], True),
        (InitialStepSkyline(knob=3, curve=CURVE), [0, 0, -1], False),
        (DynamicSkyline(knobs=(3, 6), curves=(CURVE, CURVE)), [0, 0, -1], False),
    ],
)
def test_too_few_answers_settle_nothing(rule: AllocationRule, classes: list[int], stops: bool) -> None:
    assert (rule.num_more(Votes(classes, 16)) == 0) is stops


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AgreementDoubling(agreement=0.5), "agreement: is 0.5"),  # half of the votes is no majority
        (lambda: EarlyStoppingWindow(window=1), "window: is 1"),
        (lambda: DynamicSkyline(knobs=(3, 2), curves=(CURVE, CURVE)), "give rising knobs"),
    ],
)
def test_settings_that_settle_nothing_are_refused(make: Callable[[], AllocationRule], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_reward_thresholds_are_of_the_samples_before_the_look() -> None:
    vote = LabelledVote("q", [0] * 6, [True] * 6, [1] * 6, rewards=[0.1, 0.2, 0.9, 0.9, 0.9, 0.9])
    space = StaticThreshold.search_space([vote])["certaindex, knob 2, rewards"]
    cuts = {each["reward_thresholds"][0] for each in space}
    assert sorted(cut.at_least for cut in cuts) == [0.15, 0.2]
