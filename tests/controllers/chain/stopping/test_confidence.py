"""Confidence of the model in the answer that it is asked for."""

import math

import pytest

from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.controllers.chain.stopping.confidence import AnswerConfidence
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.protocol.meta import PROBE, purpose_of

FAMILY = family_named("tinylm")
NUM_CHARACTERS = len("Q:")


@pytest.mark.parametrize(
    ("logprobs", "threshold", "stops"),
    [
        ((math.log(0.9), math.log(0.4)), 0.6, True),  # the root of 0.36
        ((math.log(0.9), math.log(0.4)), 0.61, False),
        ((0.0, 0.0, math.log(0.125)), 0.5, True),
        ((), 0.1, False),
    ],
)
def test_it_stops_where_the_geometric_mean_is_high(logprobs, threshold, stops):
    look = Probe(Prefix(10, "", None), "4", 0, False, "4}", answer_logprobs=logprobs)
    assert AnswerConfidence(threshold - 1e-9)([look]) is stops


def test_no_answer_is_never_confident():
    look = Probe(Prefix(10, "", None), None, -1, False, "hm", answer_logprobs=(0.0,))
    assert AnswerConfidence(0.01)([look]) is False


def test_the_variant_for_overconfident_models_wants_thinking_closed_behind_the_answer():
    look = Probe(Prefix(10, "", None), "4", 0, False, "4}\n</think>", answer_logprobs=(0.0,), closes=True)
    assert AnswerConfidence(must_close=True)([look])
    assert not AnswerConfidence(must_close=True)([look._replace(closes=False)])
    assert AnswerConfidence()([look._replace(closes=False)])


def sure_from(position, early=0.5):
    """Tokens of this probability, from a position of the chain on of 1."""
    suffix = len(FAMILY.probe) + NUM_CHARACTERS
    return lambda task: {0: 1.0 if len(task.input_str) - suffix >= position else early}


def test_a_chain_is_stopped_where_its_answer_is_confident(ask, mode, events):
    result, worker = ask(AnswerConfidence(0.9), ["3}", "4}", "5}"], sure_from(30), **mode)
    assert (result.answer, result.exit_reason) == ("5", "confidence")
    assert [event["confidence"] for event in events(result, "probe")] == pytest.approx([0.5, 0.5, 1.0])
    (stop,) = events(result, "stop")
    assert (stop["position"], stop["answer"], stop["confidence"]) == (30, "5", pytest.approx(1.0))
    assert {task.num_logprobs for task in worker.tasks if purpose_of(task) == PROBE} == {1}
    assert {task.num_logprobs for task in worker.tasks if purpose_of(task) != PROBE} == {None}
    assert events(result, "force") == []  # the probe's answer is the request's


def test_the_variant_reads_the_response(ask):
    rule = AnswerConfidence(0.9, must_close=True)
    on_and_on = " and so on and on and on and on"  # until its tokens are spent
    result, _ = ask(rule, [f"3}}{on_and_on}", f"4}}{on_and_on}", f"5}}\n</think>{on_and_on}"], mode="chunk")
    assert (result.answer, result.exit_reason) == ("5", "confidence")
    ended, _ = ask(rule, [f"3}}{on_and_on}", "4} and so"], mode="chunk")
    assert (ended.answer, ended.exit_reason) == ("4", "confidence")
    assert result.outputs[0].text.endswith(FAMILY.close + "5" + FAMILY.answer_end)


def test_a_worker_without_log_probabilities_is_an_error_that_says_so(scripted):
    worker, controller = scripted(AnswerConfidence())
    with (
        ScaffoldingLlm(controller, {"generation": worker("text " * 30)}) as llm,
        pytest.raises(Exception, match="no log-probabilities of an answer"),
    ):
        llm.generate("Q:")


@pytest.mark.parametrize(
    ("build", "key"),
    [
        (lambda: AnswerConfidence(0.0), "threshold"),
        (lambda: AnswerConfidence(1.5), "threshold"),
    ],
)
def test_wrong_arguments_name_their_key(build, key):
    with pytest.raises(ConfigError) as caught:
        build()
    assert caught.value.key == key
