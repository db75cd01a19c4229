"""Chains that will not converge end early, with their best answer or none."""

import math

import pytest

from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.controllers.chain.stopping.base import Stop
from scaffolding_ext.controllers.chain.stopping.giving_up import GiveUp
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.families import family_named

FAMILY = family_named("tinylm")
EARLY = {"midpoint": 20, "steepness": 1000.0, "min_tokens": 0, "smoothing": 1.0}  # a step: 0, then `most` from 20 on


def answered(*answers, hedged=()):
    known = list(dict.fromkeys(answer for answer in answers if answer is not None))
    return [
        Probe(Prefix(10 * n + 10, "", None), answer, -1 if answer is None else known.index(answer), n in hedged)
        for n, answer in enumerate(answers)
    ]


@pytest.mark.parametrize(
    ("confidences", "stops"),
    [
        ([0.4], False),  # the threshold has not risen yet
        ([0.4, 0.4], True),
        ([0.1, 0.6], False),  # it keeps up
        ([0.9, 0.9, 0.5], True),  # the threshold itself is not enough
    ],
)
def test_a_chain_that_is_not_confident_for_its_length_is_given_up(looks, confidences, stops):
    rule = GiveUp(most=0.5, **EARLY | {"midpoint": 15})
    assert rule(looks(answers=[("4", confidence) for confidence in confidences])) is stops


def test_the_signal_is_smoothed_and_the_trace_has_both_sides(looks):
    rule = GiveUp(most=0.5, **EARLY | {"midpoint": 10, "steepness": math.log(3) / 10, "smoothing": 0.5})
    seen = looks(answers=[("4", 0.9), ("4", 0.1)])
    # the mean of 0.9 and 0.1 against 0.5 / (1 + 1 / 3)
    assert rule.figures(seen) == {"confidence": pytest.approx(0.5), "threshold": pytest.approx(0.375)}
    assert rule(seen) is False


def test_no_answer_is_no_confidence_but_a_short_chain_is_left_alone(looks):
    seen = looks(answers=[(None, 0.9)])
    assert GiveUp(**EARLY | {"midpoint": 1})(seen)
    assert not GiveUp(**EARLY | {"midpoint": 1, "min_tokens": 11})(seen)


@pytest.mark.parametrize(
    ("answers", "hedged", "agreement"),
    [
        (["4"], (), 1.0),
        (["4", "5"], (), 0.5),
        (["4", "5", "5"], (), 2 / 3),
        (["4", "5", "5", "5"], (), 1.0),
        (["4", "4", None], (), 0.0),
        (["4", "4", "4"], (1,), 2 / 3),
    ],
)
def test_agreement_is_the_share_of_the_last_answers_that_equal_the_newest(answers, hedged, agreement):
    rule = GiveUp("agreement", **EARLY)
    assert rule.figures(answered(*answers, hedged=hedged))["agreement"] == pytest.approx(agreement)


def test_certainty_is_the_chains_own(looks):
    rule = GiveUp("certainty", most=0.7, **EARLY | {"midpoint": 1}, window=2)
    seen = looks(chosen=[0.9, 0.4])
    assert rule.figures(seen)["certainty"] == pytest.approx(0.6)
    assert rule(seen)
    assert not rule.needs.answer


@pytest.mark.parametrize(
    ("answers", "hedged", "best"),
    [
        (["5", "5", "4"], (), "5"),
        (["5", "4"], (), "4"),  # as many: the newest
        (["5", "5", "4"], (0, 1), "4"),
        (["5", None], (0,), "5"),  # better hedged than none
        ([None, None], (), None),
    ],
)
def test_the_best_answer_is_the_most_frequent(answers, hedged, best):
    found = Stop("gave_up", "best").left_with(answered(*answers, hedged=hedged))
    assert (None if found is None else found.answer) == best


def test_with_none_no_look_is_left_with():
    assert Stop("gave_up", "none").left_with(answered("5", "5")) is None


def test_a_chain_is_given_up_with_its_best_answer(ask, mode, events):
    rule = GiveUp("agreement", most=0.7, midpoint=35, steepness=10.0, min_tokens=0)
    result, _ = ask(rule, ["3}", "4}", "3}", "5}"], **mode)
    assert (result.answer, result.exit_reason) == ("3", "gave_up")
    (stop,) = events(result, "stop")
    assert (stop["position"], stop["answer"], stop["reason"]) == (40, "3", "gave_up")
    assert stop["threshold"] == pytest.approx(0.7)
    assert result.outputs[0].text.endswith(FAMILY.close + "3" + FAMILY.answer_end)


def test_a_chain_is_given_up_without_an_answer_if_that_is_asked(ask, mode, events):
    rule = GiveUp("agreement", most=0.7, midpoint=35, steepness=10.0, min_tokens=0, answer="none")
    result, _ = ask(rule, ["3}", "4}", "3}", "5}"], chain="x" * 200, **mode)
    assert (result.answer, result.exit_reason) == (None, "gave_up")
    assert result.outputs[0].text == "x" * 40
    assert events(result, "force") == []


def test_where_no_look_had_an_answer_the_chain_is_asked_for_one(ask, mode, events):
    rule = GiveUp("agreement", most=0.7, midpoint=15, steepness=10.0, min_tokens=20)
    result, _ = ask(rule, ["", "", "7}"], **mode)
    assert (result.answer, result.exit_reason) == ("7", "gave_up")
    assert [event["position"] for event in events(result, "force")] == [20]


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"signal": "mood"}, "signal"),
        ({"most": 0.0}, "most"),
        ({"midpoint": 0}, "midpoint"),
        ({"steepness": 0.0}, "steepness"),
        ({"least": 1.0}, "least"),
        ({"smoothing": 0.0}, "smoothing"),
        ({"window": 0}, "window"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"answer": "newest"}, "answer"),
    ],
)
def test_wrong_arguments_name_their_key(arguments, key):
    with pytest.raises(ConfigError) as caught:
        GiveUp(**arguments)
    assert caught.value.key == key
