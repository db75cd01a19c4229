"""Budget forcing: the cut, the forced answer, and the chains that need neither."""

import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.budgets.budget_forcing import BudgetForcingController
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol.meta import PROBE, Purpose, purpose_of
from scaffolding_ext.protocol.worker import ServerBudget
from scaffolding_ext.testing import ScriptedWorker

FAMILY = family_named("tinylm")
PROMPT = "Question: "
ENDLESS = "thinking on and on " * 100
CLOSING = "some thinking, then</think>\nThe answer is \\boxed{9}."
CLOSED_AT = CLOSING.index("</think>") + len("</think>")


def request(controller, chain, answer="4} and"):
    def respond(task):
        return answer if purpose_of(task) == PROBE else chain[len(task.input_str) - len(PROMPT) :]

    worker = ScriptedWorker(respond)
    with ScaffoldingLlm(controller, {"generation": worker}) as llm:
        return llm.generate(PROMPT), worker.tasks


def controller(thinking_tokens, max_answer_tokens=40, **arguments):
    return BudgetForcingController(thinking_tokens, max_answer_tokens=max_answer_tokens, family="tinylm", **arguments)


@pytest.mark.parametrize("budget", [1, 30, 200])
def test_thinking_is_cut_and_the_answer_forced(budget):
    result, tasks = request(controller(budget), ENDLESS)
    assert result.outputs[0].text == ENDLESS[:budget] + FAMILY.close + "4" + FAMILY.answer_end
    assert (result.answer, result.exit_reason) == ("4", "length")
    assert [task.max_tokens for task in tasks] == [budget, 40]
    assert tasks[1].input_str == PROMPT + ENDLESS[:budget] + FAMILY.close
    (kept, _, forced) = result.program.trace
    assert (kept["event"], kept["asked"], kept["by"]) == ("thinking_budget", budget, "controller")
    assert (forced["event"], forced["position"]) == ("force", budget)
    ledger = result.program.ledger.by_purpose
    assert (ledger[Purpose.CHAIN].decoded, ledger[Purpose.PROBE].decoded) == (budget, len("4} and"))


@pytest.mark.parametrize("budget", [len(CLOSING) + 1, 500])
def test_a_chain_that_ends_before_the_budget_is_left_alone(budget):
    result, tasks = request(controller(budget), CLOSING)
    assert (result.outputs[0].text, result.answer, result.exit_reason) == (CLOSING, "9", "end")
    assert result.outputs[0].token_ids == [ord(c) for c in CLOSING]
    assert len(tasks) == 1


@pytest.mark.parametrize("insists", [True, False])
def test_a_chain_that_ends_without_an_answer_is_asked_for_one_unless_nobody_insists(insists):
    result, _ = request(controller(500, insist_on_answer=insists), "no idea")
    text = "no idea" + FAMILY.close + "4" + FAMILY.answer_end if insists else "no idea"
    assert (result.outputs[0].text, result.answer, result.exit_reason) == (text, "4" if insists else None, "end")


@pytest.mark.parametrize("budget", [CLOSED_AT, CLOSED_AT + 9, len(CLOSING) - 1])
def test_an_answer_that_has_begun_at_the_cut_is_finished(budget):
    result, tasks = request(controller(budget), CLOSING)
    assert (result.outputs[0].text, result.answer, result.exit_reason) == (CLOSING, "9", "end")
    assert [purpose_of(task).written for task in tasks] == [Purpose.CHAIN] * 2
    assert tasks[1].max_tokens == 40


@pytest.mark.parametrize("budget", [CLOSED_AT - 8, CLOSED_AT - 4, CLOSED_AT - 1])
def test_a_marker_that_the_cut_goes_through_is_open_thinking(budget):
    result, _ = request(controller(budget), CLOSING)
    assert result.outputs[0].text == CLOSING[:budget] + FAMILY.close + "4" + FAMILY.answer_end


@pytest.mark.parametrize("given", ["", "\nThe answer is \\boxed{7}. And "])
def test_an_answer_that_does_not_end_within_its_own_budget_is_forced_unless_it_is_given(given):
    chain = CLOSING[:CLOSED_AT] + given + "and so forth " * 50
    result, tasks = request(controller(CLOSED_AT + 3), chain)
    cut = chain[: CLOSED_AT + 43]
    forced = FAMILY.close_closed + "4" + FAMILY.answer_end
    assert result.outputs[0].text == (cut if given else cut + forced)
    assert (result.answer, result.exit_reason) == ("7" if given else "4", "length")
    assert len(tasks) == (2 if given else 3)


@pytest.mark.parametrize(
    ("chain", "asked", "answer"),
    [
        (ENDLESS, "12 is it, I think\nand so on", "12 is it, I think"),
        (ENDLESS, "  \n", None),
        (ENDLESS, "}", None),
        ("so the answer is: 7\n" + ENDLESS, "}", "7"),
    ],
)
def test_an_answer_that_is_not_closed_stands_up_to_its_line_s_end_and_else_the_thinking_s_own(chain, asked, answer):
    result, _ = request(controller(30), chain, asked)
    ending = "" if answer is None else FAMILY.close + answer + FAMILY.answer_end
    assert (result.outputs[0].text, result.answer, result.exit_reason) == (chain[:30] + ending, answer, "length")


def test_a_budget_of_nothing_is_an_answer_at_once():
    result, (task,) = request(controller(0), ENDLESS)
    assert (result.outputs[0].text, result.answer) == (FAMILY.close + "4" + FAMILY.answer_end, "4")
    assert task.input_str == PROMPT + FAMILY.close


def test_sampling_is_that_of_chain_and_answer():
    sampling = {"sampling_params": {"temperature": 0.7}, "answer_sampling_params": {"top_p": 0.5}}
    _, (chain, answer) = request(controller(30, **sampling), ENDLESS)
    assert (chain.temperature, chain.top_p) == (0.7, None)
    assert (answer.temperature, answer.top_p) == (0.0, 0.5)


def test_the_family_is_the_promptings_unless_given():
    def respond(task):
        return "4}" if purpose_of(task) == PROBE else ENDLESS

    texts = []
    for family in (None, "deepseek_r1"):
        forcing = BudgetForcingController(10, family=family)
        forcing.prompting = Prompting.for_model("tinylm/draft")
        with ScaffoldingLlm(forcing, {"generation": ScriptedWorker(respond)}) as llm:
            output = llm.generate("q").outputs[0]
        texts.append(output.text)
        closing = output.text[10:]
        assert output.token_ids == [ord(c) for c in ENDLESS[:10]] + forcing.prompting.encode(closing)
    assert texts[0] == ENDLESS[:10] + FAMILY.close + "4" + FAMILY.answer_end
    assert texts[1] == ENDLESS[:10] + family_named("deepseek_r1").close + "4" + family_named("deepseek_r1").answer_end


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"thinking_tokens": 5, "exact": True, "wait": ""}, "wait"),
        ({"thinking_tokens": 5, "exact": True, "kept_by": "server"}, "kept_by"),
        (
            {"thinking_tokens": 5, "generation_controller": NativeGenerationController(), "sampling_params": {"n": 1}},
            "generation_controller",
        ),
        ({"thinking_tokens": 5, "sampling_params": {"max_tokens": 5}}, "sampling_params"),
        ({"thinking_tokens": 5, "answer_sampling_params": {"temprature": 5}}, "answer_sampling_params"),
    ],
)
def test_bad_arguments_name_their_key(arguments, key):
    with pytest.raises(ConfigError) as caught:
        BudgetForcingController(**arguments)
    assert caught.value.key == key


def test_with_a_deadline_no_server_keeps_the_budget_since_the_clock_is_read_between_steps():
    chain = "some thinking, " * 20 + CLOSING
    worker = ScriptedWorker(lambda task: chain[len(task.input_str) - len(PROMPT) :])
    worker.server_budget = ServerBudget()
    with ScaffoldingLlm(controller(1000, kept_by="server"), {"generation": worker}) as llm:
        result = llm.generate(PROMPT, deadline=1000)
    assert (result.outputs[0].text, result.answer, result.exit_reason) == (chain, "9", "end")
    (kept,) = (event for event in result.program.trace if event["event"] == "thinking_budget")
    assert (kept["by"], kept["reason"]) == ("controller", "the request has a deadline")


def test_a_limit_of_the_request_lengthens_no_forced_answer():
    worker = ScriptedWorker(
        lambda task: "4} and" if purpose_of(task) == PROBE else ENDLESS[len(task.input_str) - len(PROMPT) :]
    )
    with ScaffoldingLlm(controller(30), {"generation": worker}) as llm:
        for max_tokens in (500, 50):
            llm.generate(PROMPT, max_tokens=max_tokens)
    assert [task.max_tokens for task in worker.tasks] == [30, 40, 30, 20]
