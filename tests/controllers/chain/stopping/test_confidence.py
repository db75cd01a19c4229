"""How sure the model is: of an answer that it is asked for, and of the chain that it writes."""

import asyncio
import math

import pytest

from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.looking import ThoughtChanges
from scaffolding_ext.controllers.chain.probe import AnswerProbe, Probe
from scaffolding_ext.controllers.chain.stopping.confidence import AnswerConfidence, ChainCertainty, certainty
from scaffolding_ext.errors import ConfigError, NoOutputError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.meta import PROBE, Purpose, purpose_of
from scaffolding_ext.protocol.task_results import TokenLogprob

FAMILY = family_named("tinylm")
NUM_CHARACTERS = len("Q:")


# ---- of the answer


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


def test_at_changes_of_thought_it_looks_behind_the_words_alone(ask, mode, events):
    chain = "one two three four. Wait, is it so? yes it is. Waiting for six. Hmm, no. and so on and on and on " * 2
    result, _ = ask(
        AnswerConfidence(1.0), ["4}"], lambda task: {0: 0.5}, chain=chain, schedule=ThoughtChanges(8), **mode
    )
    turns = [chain.index("Wait,"), chain.index("Hmm"), chain.index("Wait,", 50), chain.index("Hmm", 100)]
    expected = [
        8 * math.ceil((start + len(word) + 1) / 8) for start, word in zip(turns, ["Wait", "Hmm"] * 2, strict=True)
    ]
    assert [event["position"] for event in events(result, "probe")] == expected
    assert result.exit_reason == "end"


def test_between_changes_of_thought_the_caller_sees_the_chain_grow(scripted):
    worker, controller = scripted("consecutive")
    controller.schedule = ThoughtChanges(8)

    async def read(llm):
        return [part.outputs[0].text async for part in llm.generate_async("Q:", streaming=True)]

    chain = "one two three four five six seven"
    with ScaffoldingLlm(controller, {"generation": worker(chain)}) as llm:
        texts = asyncio.run(read(llm))
    assert texts[:3] == [chain[:8], chain[:16], chain[:24]]


# ---- of the chain


def test_certainty_is_of_the_last_tokens_that_were_written(looks):
    seen = looks(chosen=[0.1, 0.9, 0.4])
    rule = ChainCertainty(0.6 - 1e-9, window=2)
    assert [rule(seen[:num]) for num in (1, 2, 3)] == [False, False, True]
    assert rule.figures(seen)["certainty"] == pytest.approx(0.6)
    assert not ChainCertainty(0.61, window=2)(seen)
    assert not ChainCertainty(0.01, window=4)(seen)  # fewer tokens are there


def test_the_token_that_was_written_counts_not_the_likeliest():
    steps = [{7: TokenLogprob(math.log(0.25)), 9: TokenLogprob(-0.1)}]
    assert certainty(Prefix(1, "a", [7], steps), 1) == pytest.approx(0.25)
    with pytest.raises(NoOutputError, match="several tokens at one position, without ids that say which was written"):
        certainty(Prefix(1, "a", None, steps), 1)


def test_a_chain_is_stopped_where_it_is_certain_without_a_probe(ask, mode, events):
    result, worker = ask(ChainCertainty(0.99, window=20), ["4}"], lambda task: {0: 1.0}, **mode)
    assert (result.answer, result.exit_reason) == ("4", "certainty")
    assert [event["event"] for event in result.program.trace.decisions] == ["begin", "stop", "end", "force"]
    (stop,) = events(result, "stop")
    assert (stop["position"], stop["certainty"]) == (20, pytest.approx(1.0))
    assert {task.num_logprobs for task in worker.tasks if purpose_of(task) != PROBE} == {1}
    assert result.program.ledger.by_purpose[Purpose.PROBE].decoded == len("4}")  # the answer, once


def test_a_chain_that_is_never_certain_ends_by_itself(ask):
    result, _ = ask(ChainCertainty(0.99, window=20), ["4}"], lambda task: {0: 0.5}, mode="chunk")
    assert result.exit_reason == "end"


def test_what_the_chains_sampling_fields_ask_for_is_kept_where_it_is_more(ask):
    _, worker = ask(ChainCertainty(), mode="chunk", sampling_params={"num_logprobs": 5})
    assert {task.num_logprobs for task in worker.tasks if purpose_of(task) != PROBE} == {5}


@pytest.mark.parametrize(
    ("rule", "what"), [(AnswerConfidence(), "of an answer"), (ChainCertainty(window=5), "of the chain")]
)
def test_a_worker_without_log_probabilities_is_an_error_that_says_so(scripted, rule, what):
    worker, controller = scripted(rule)
    with (
        ScaffoldingLlm(controller, {"generation": worker("text " * 30)}) as llm,
        pytest.raises(Exception, match=f"no log-probabilities {what}"),
    ):
        llm.generate("Q:")


@pytest.mark.parametrize(
    ("build", "key"),
    [
        (lambda: AnswerConfidence(0.0), "threshold"),
        (lambda: AnswerConfidence(1.5), "threshold"),
        (lambda: ChainCertainty(threshold=-1), "threshold"),
        (lambda: ChainCertainty(window=0), "window"),
        (lambda: ThoughtChanges(0), "step"),
        (lambda: ThoughtChanges(words="Wait"), "words"),
        (lambda: ThoughtChanges(words=[]), "words"),
    ],
)
def test_wrong_arguments_name_their_key(build, key):
    with pytest.raises(ConfigError) as caught:
        build()
    assert caught.value.key == key


# ---- probes of one token


def test_a_first_token_stands_for_the_answer_until_the_chain_is_stopped(ask, mode, events):
    probe = AnswerProbe(first_token=True)
    result, worker = ask("consecutive", ["1", "12}", "13}", "144}"], probe=probe, **mode)
    # the worker would have answered 1, 12 and 13; their first tokens agree
    assert [(event["answer"], event["is_part"]) for event in events(result, "probe")] == [("1", True)] * 3
    assert (result.answer, result.exit_reason) == ("144", "certain")  # it is asked for the whole once
    assert [task.max_tokens for task in worker.tasks if purpose_of(task) == PROBE] == [1, 1, 1, 20]
    assert result.program.ledger.by_purpose[Purpose.PROBE].decoded == 3 + len("144}")


@pytest.mark.parametrize(
    ("response", "answer", "is_part"), [("4", "4", True), (" ", None, False), ("}", None, False), ("4}", "4", False)]
)
def test_a_first_token_that_closes_the_box_is_the_answer(response, answer, is_part):
    task = GenerationTask(output_str=response)
    look = AnswerProbe(first_token=True).read(Prefix(1, "x", None), task)
    assert (look.answer, look.is_part) == (answer, is_part)
