"""The doctor: each diagnosis on a double that misbehaves so, and none on one that does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.doctor.examination import Examination, examine
from scaffolding_ext.doctor.exchange import Exchange, questions_of
from scaffolding_ext.doctor.findings import Examined, Finding, dropped_thinking, out_of_reach
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol import GenerationTask, TaskStatus
from scaffolding_ext.stack.load import load_config
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.workers.openai.flavors import FLAVORS
from tests.servers.openai_server import OpenAIServer

NATIVE: dict[str, Any] = {"type": "NativeGenerationController", "args": {"sampling_params": {"temperature": 0.6}}}
DYNASOR: dict[str, Any] = {
    "type": "DynasorCoTController",
    "args": {"max_tokens": 64, "mode": "chunk", "chunk_size": 8, "sampling_params": {"temperature": 0.6}},
}
GOOD = "<think>\nhm\n</think>\n\nIt is \\boxed{42}."


class Hiding(ScriptedWorker):
    """Keeps the thinking to itself, and counts it."""

    async def _generate(self, task: GenerationTask) -> TaskStatus:
        status = await super()._generate(task)
        task.output_tokens = [7] * 900
        return status

    task_handlers: ClassVar = {**ScriptedWorker.task_handlers, GenerationTask: _generate}


class Served(ScriptedWorker):
    """Stands for a server that cannot be asked to show special tokens."""

    flavor = FLAVORS["openai"]


class Modelled(ScriptedWorker):
    """Says that it serves a model, as workers do that run one themselves."""

    model: Any = None

    def __init__(self, respond: Any, model: str) -> None:
        super().__init__(respond)
        self.model = model


class Short(Modelled):
    """A model with a short context."""

    def __init__(self, respond: Any, model: str, length: int) -> None:
        super().__init__(respond, model)
        self.max_seq_len = length


class Untold(ScriptedWorker):
    """A chat server whose tokenizer is unknown."""

    takes_messages = True
    model = None


def examined(
    respond: Any,
    model: str | None = None,
    controller: dict[str, Any] = NATIVE,
    worker: dict[str, Any] | None = None,
    max_tokens: int = 2048,
    **prompt: Any,
) -> Examination:
    stack = {
        "controller": controller,
        "workers": {"generation": worker or {"type": "ScriptedWorker", "args": {"respond": {"$ref": "respond"}}}},
        **({} if model is None else {"prompt": {"model": model, **prompt}}),
    }
    return examine(load_config(stack), max_tokens=max_tokens, references={"respond": respond})


def wrong(examination: Examination) -> dict[str, Finding]:
    return {finding.name: finding for finding in examination.findings if finding.is_wrong}


def noted(examination: Examination) -> dict[str, Finding]:
    return {finding.name: finding for finding in examination.findings if not finding.is_wrong}


# ---- nothing is wrong


def test_a_stack_that_behaves_is_fine(saved_model: Callable[..., str]) -> None:
    found = examined(lambda task: "42}" if str(task.input_str).endswith("{") else GOOD, saved_model("qwen3"))
    assert found.is_fine, found.findings
    assert not noted(found)
    assert list(found.lines())[-1].startswith("No problems found.")


def test_the_report_shows_prompt_and_answer(saved_model: Callable[..., str]) -> None:
    found = examined(lambda task: "42}" if str(task.input_str).endswith("{") else GOOD, saved_model("qwen3"))
    text = "\n".join(found.lines())
    assert "prompt       '<|im_start|>user\\nWhat is 17 + 25?<|im_end|>\\n<|im_start|>assistant\\n'" in text
    assert "answer       42 (end)" in text
    assert "family       deepseek_r1 (the chat template mentions </think>)" in text
    assert json.loads(json.dumps(found.to_json()))["fine"] is True


def test_a_closed_prompt_misses_no_thinking(saved_model: Callable[..., str]) -> None:
    asked: list[str] = []

    def respond(task: Any) -> str:
        asked.append(str(task.input_str))
        return "42}" if asked[-1].endswith("{") else "It is \\boxed{42}."

    found = examined(respond, saved_model("qwen3"), chat_template_kwargs={"enable_thinking": False})
    assert found.is_fine, found.findings
    assert "no_thinking_mark" not in noted(found)
    assert any("thinking is closed at the end of a prompt" in line for line in found.lines())


# ---- one thing is wrong


def test_no_box(saved_model: Callable[..., str]) -> None:
    found = wrong(examined("Forty-two, I should say.", saved_model("smollm2")))
    assert found.keys() == {"no_box"}
    assert "2 of 2 chains ended without" in found["no_box"].message
    assert found["no_box"].change.startswith('prompt: {prompt_suffix: "\\nPlease reason')
    asked = wrong(examined("Forty-two.", saved_model("smollm2"), prompt_suffix=" Put it into \\boxed{}."))
    assert asked["no_box"].change.startswith("controller: {type: DynasorCoTController}")
    assert "endpoint" not in asked["no_box"].change


@pytest.mark.parametrize(("flavor", "is_told"), [("vllm", False), ("trtllm", True)])
def test_a_controller_that_a_chat_server_cannot_run_is_advised_with_completions(flavor: str, is_told: bool) -> None:
    """The advised controller probes: such stacks are refused on chats that begin a new answer instead of continuing."""
    pytest.importorskip("openai")
    with ScriptedWorker("Forty-two.") as worker, OpenAIServer(worker, "mine", flavor=flavor) as server:
        generation = {"type": "OpenAIWorker", "args": {"base_url": server.url, "model": "mine", "endpoint": "chat"}}
        stack = {
            "controller": NATIVE,
            "workers": {"generation": generation},
            "prompt": {"prompt_suffix": " Use boxed."},
        }
        change = wrong(examine(load_config(stack)))["no_box"].change
        probing = load_config(stack | {"controller": {**DYNASOR, "args": {**DYNASOR["args"], "family": "instruct"}}})
        assert ("endpoint: completions" in change) is is_told
        if is_told:
            with pytest.raises(ConfigError, match="endpoint: completions"):
                examine(probing)
        else:
            assert examine(probing).examined.exchanges[0].error is None


def test_an_answer_that_was_asked_for_is_only_noted(saved_model: Callable[..., str]) -> None:
    controller = {**DYNASOR, "args": {**DYNASOR["args"], "family": "instruct", "rule": "consecutive"}}
    found = examined(
        lambda task: "42}" if str(task.input_str).endswith("{") else "So.", saved_model("smollm2"), controller
    )
    assert found.is_fine
    assert "the stack asked for the answer" in noted(found)["no_box"].message


def test_a_thinking_family_whose_mark_never_comes(saved_model: Callable[..., str]) -> None:
    found = wrong(examined("<think>It is \\boxed{42}.", saved_model("qwen3")))
    assert found.keys() == {"no_thinking_mark"}
    assert found["no_thinking_mark"].change == "prompt: {family: instruct}"


@pytest.mark.parametrize(("num_unclosed", "is_wrong"), [(1, False), (3, False), (5, True), (6, True)])
def test_a_few_chains_without_the_mark_say_nothing_of_the_family(
    saved_model: Callable[..., str], num_unclosed: int, is_wrong: bool
) -> None:
    replies = iter([*["<think>It is \\boxed{42}."] * num_unclosed, *[GOOD] * (6 - num_unclosed)] * 2)
    controller = {
        "type": "MajorityVoteController",
        "args": {"default_sample_num": 6, "allocation": None, "generation_controller": NATIVE},
    }
    found = examined(lambda task: next(replies), saved_model("qwen3"), controller)
    assert ("no_thinking_mark" in wrong(found)) is is_wrong
    assert ("no_thinking_mark" in noted(found)) is not is_wrong
    if not is_wrong:
        assert f"{2 * num_unclosed} of 12 chains" in noted(found)["no_thinking_mark"].message


def test_without_a_tokenizer_the_remedy_is_the_tokenizer() -> None:
    worker = {"type": f"{__name__}:Untold", "args": {"respond": "<think>hm</think>\\boxed{42}"}}
    stack = {"controller": NATIVE, "workers": {"generation": worker}, "prompt": {"prompt_suffix": " Use a box."}}
    found = wrong(examine(load_config(stack)))
    assert found["no_thinking_mark"].change.startswith("workers.generation.args.tokenizer: ")


@pytest.mark.parametrize(("budget", "context", "is_told"), [(4096, 2048, True), (600, 2048, False)])
def test_a_budget_beyond_the_context_is_shown_with_it(
    saved_model: Callable[..., str], budget: int, context: int, is_told: bool
) -> None:
    controller = {"type": "NativeGenerationController", "args": {"sampling_params": {"max_tokens": budget}}}
    worker = {"type": f"{__name__}:Short", "args": {"respond": GOOD, "model": saved_model("qwen3"), "length": context}}
    found = noted(examined(None, None, controller, worker=worker))
    assert ("budget" in found) is is_told
    if is_told:
        assert (
            f"own budget, without --max_tokens, is {budget} tokens after the prompt, and the worker takes {context}"
            in found["budget"].message
        )


def test_thinking_that_nobody_opens(saved_model: Callable[..., str]) -> None:
    found = wrong(examined("hm</think>It is \\boxed{42}.", saved_model("qwen3")))
    assert found["no_thinking_mark"].change == 'prompt: {assistant_prefix: "<think>\\n"}'
    opened = examined("hm</think>It is \\boxed{42}.", saved_model("qwen3"), assistant_prefix="<think>\n")
    assert "no_thinking_mark" not in wrong(opened)


@pytest.mark.parametrize(
    ("text", "family"), [("<think>hm</think>\\boxed{42}", "deepseek_r1"), ("[THINK]a[/THINK]\\boxed{42}", "magistral")]
)
def test_a_model_that_thinks_against_its_family(text: str, family: str, saved_model: Callable[..., str]) -> None:
    found = wrong(examined(text, saved_model("smollm2")))
    assert found.keys() == {"no_thinking_mark"}
    assert found["no_thinking_mark"].change == f"prompt: {{family: {family}}}"


def test_gpt_oss_that_is_stopped_behind_its_thinking(saved_model: Callable[..., str]) -> None:
    found = wrong(examined("analysisTwo and two.", saved_model("gpt_oss")))
    assert "stops at <|end|>" in found["no_thinking_mark"].message
    assert "200002" in found["no_thinking_mark"].change


def test_a_mark_that_decoding_drops(saved_model: Callable[..., str]) -> None:
    model = saved_model("qwen3", special=("</think>",))
    assert "dropped_thinking" not in wrong(examined(GOOD, model))  # it is made visible here
    worker = {"type": f"{__name__}:Served", "args": {"respond": GOOD}}
    found = wrong(examined(None, model, worker=worker))
    assert "special token" in found["dropped_thinking"].message
    assert '"special": false' in found["dropped_thinking"].change


def test_a_server_that_keeps_the_thinking_to_itself(saved_model: Callable[..., str]) -> None:
    worker = {"type": f"{__name__}:Hiding", "args": {"respond": "</think>It is \\boxed{42}."}}
    found = wrong(examined(None, saved_model("qwq"), worker=worker))
    assert "counts 900 tokens" in found["dropped_thinking"].message
    assert "endpoint: completions" in found["dropped_thinking"].change


def chat_stack(model: str) -> Examined:
    worker = {
        "type": "OpenAIWorker",
        "args": {"base_url": "http://localhost:1/v1", "model": "m", "tokenizer": model, "endpoint": "chat"},
    }
    config = load_config({"controller": DYNASOR, "workers": {"generation": worker}})
    return Examined(config, DynasorCoTController(), None, [])


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("qwen3", True),
        ("nemotron3_nano", True),
        ("deepseek_r1_distill", True),
        ("llama3_instruct", False),
        ("smollm2", False),
    ],
)
def test_a_chat_template_that_changes_an_unfinished_answer(
    name: str, changes: bool, saved_model: Callable[..., str]
) -> None:
    model = saved_model(name)
    assert Prompting.for_model(model, family="deepseek_r1").changes_unfinished_turns is changes
    found = list(dropped_thinking(chat_stack(model)))
    assert [finding.change for finding in found] == ["workers.generation.args.endpoint: completions"] * changes


def test_a_reasoning_model_that_runs_greedily(saved_model: Callable[..., str]) -> None:
    greedy = {"type": "NativeGenerationController", "args": {"sampling_params": {"temperature": 0.0}}}
    found = wrong(examined(GOOD, saved_model("qwen3"), greedy))
    assert found.keys() == {"greedy_thinking"}
    assert found["greedy_thinking"].change == "sampling: {temperature: 0.6, top_p: 0.95}"
    assert not wrong(examined("\\boxed{42}", saved_model("smollm2"), greedy))  # it does not think


def test_a_worker_that_is_greedy_by_itself(saved_model: Callable[..., str]) -> None:
    model = saved_model("qwen3")
    worker = {"type": f"{__name__}:Modelled", "args": {"respond": GOOD, "model": model}}
    unsaid = {"type": "NativeGenerationController"}
    assert "greedy_thinking" in wrong(examined(None, model, unsaid, worker))
    own = saved_model("qwen3", marker=1)
    (Path(own) / "generation_config.json").write_text('{"do_sample": true, "temperature": 0.9, "top_p": 0.8}')
    worker = {"type": f"{__name__}:Modelled", "args": {"respond": GOOD, "model": own}}
    assert not wrong(examined(None, own, unsaid, worker))
    named = {"type": "NativeGenerationController", "args": {"sampling_params": {"temperature": 0.0}}}
    change = wrong(examined(None, own, named, worker))["greedy_thinking"].change
    assert change == "sampling: {temperature: 0.9, top_p: 0.8}"


def test_log_probabilities_that_do_not_come(saved_model: Callable[..., str]) -> None:
    wants = {"type": "NativeGenerationController", "args": {"sampling_params": {"temperature": 1.0, "num_logprobs": 5}}}
    found = wrong(examined("\\boxed{42}", saved_model("smollm2"), wants))
    assert found.keys() == {"missing_logprobs"}
    assert "asked for 5 log-probabilities" in found["missing_logprobs"].message


def test_a_worker_that_goes_on_behind_the_end_of_a_turn(saved_model: Callable[..., str]) -> None:
    found = wrong(examined("\\boxed{42}\nuser\nThanks!", saved_model("smollm2")))
    assert found.keys() == {"stop_ids"}
    assert found["stop_ids"].change.startswith('sampling: {stop: ["\\nuser\\n"]}, or in generation_config.json')


def test_an_end_token_in_the_middle_of_a_chain(saved_model: Callable[..., str]) -> None:
    model = saved_model("smollm2")
    end = Prompting.for_model(model).turn_end()
    assert end is not None
    assert end.token_id is not None
    found = wrong(examined(lambda task: [*map(ord, "\\boxed{4}"), end.token_id, ord("!")], model))
    assert f"token {end.token_id}, which ends its turn" in found["stop_ids"].message
    assert "stop_ids" not in wrong(examined(lambda task: [*map(ord, "\\boxed{4}"), end.token_id], model))  # at its end


def test_probes_without_an_answer(saved_model: Callable[..., str]) -> None:
    controller = {**DYNASOR, "args": {**DYNASOR["args"], "family": "instruct", "rule": "consecutive"}}
    found = wrong(examined("I would not know", saved_model("smollm2"), controller))
    assert found.keys() == {"unanswered_probe"}
    assert "2 of 2 probes" in found["unanswered_probe"].message


def test_a_controller_keeps_its_own_limit(saved_model: Callable[..., str]) -> None:
    controller = {"type": "NativeGenerationController", "args": {"sampling_params": {"max_tokens": 3}}}
    found = examined("a long text", saved_model("smollm2"), controller, max_tokens=2048)
    assert [chain.text for chain in found.examined.written] == ["a l", "a l"]


def test_a_limit_that_every_chain_runs_into_is_noted(saved_model: Callable[..., str]) -> None:
    found = examined("a long text without an end", saved_model("smollm2"), max_tokens=5)
    assert "--max_tokens" in noted(found)["never_ends"].change


def test_a_request_that_fails(saved_model: Callable[..., str]) -> None:
    found = examined(lambda task: RuntimeError("no GPU left"), saved_model("smollm2"))
    assert "no GPU left" in wrong(found)["failed"].message
    assert any(line.startswith("failed") for line in found.lines())


def test_a_stack_without_a_template_is_noted() -> None:
    found = examined("\\boxed{42}")
    assert found.is_fine
    assert noted(found).keys() == {"no_template"}


# ---- what is shown


def test_the_samples_of_a_vote_are_looked_at_one_by_one(saved_model: Callable[..., str]) -> None:
    vote = {
        "type": "MajorityVoteController",
        "args": {"default_sample_num": 6, "allocation": None, "generation_controller": NATIVE},
    }
    texts = iter([GOOD] * 5 + ["<think>\nhm, forty-two."] + [GOOD] * 6)
    found = examined(
        lambda task: "42}" if str(task.input_str).endswith("{") else next(texts), saved_model("qwen3"), vote
    )
    assert "1 of 12 chains ended without '</think>'" in noted(found)["no_thinking_mark"].message
    first, _ = found.to_json()["exchanges"]
    assert [chain["text"] for chain in first["written"]][4:] == [GOOD, "<think>\nhm, forty-two."]
    lines = list(found.lines())
    assert [line.split()[:2] for line in lines if line.startswith("sample ")][:4] == [
        ["sample", str(number)] for number in range(1, 5)
    ]
    assert any("and 2 more samples" in line for line in lines)


def test_a_probe_stands_with_the_chain_that_it_asked(saved_model: Callable[..., str]) -> None:
    vote = {
        "type": "MajorityVoteController",
        "args": {"default_sample_num": 2, "allocation": None, "generation_controller": DYNASOR},
    }
    found = examined(lambda task: "42}" if str(task.input_str).endswith("{") else GOOD * 3, saved_model("qwen3"), vote)
    for exchange in found.examined.exchanges:
        assert len(exchange.written) == 2
        assert all(chain.probe is not None for chain in exchange.written)


def test_it_says_how_many_probes_reached_the_threshold_of_a_rule_of_confidence() -> None:
    confidence = {"type": "confidence", "args": {"threshold": 0.9}}
    controller = DynasorCoTController(rule={"type": "all", "args": {"rules": ["consecutive", confidence]}})
    exchange = Exchange("?", "?", [], [], "", None, "length", [0.2, 0.95, 0.5], None)
    stack = load_config({"controller": DYNASOR, "workers": {"generation": {"type": "ScriptedWorker"}}})
    (finding,) = out_of_reach(Examined(stack, controller, None, [exchange]))
    assert finding.message.startswith("1 of 3 probes reached the rule's confidence threshold of 0.9")
    assert (finding.change, finding.is_wrong) == ("", False)
    (finding,) = out_of_reach(Examined(stack, controller, None, [exchange._replace(confidences=[0.2, 0.5])]))
    assert finding.message.startswith("0 of 2 probes reached")
    assert "controller.args.rule" in finding.change
    assert not list(out_of_reach(Examined(stack, DynasorCoTController(), None, [exchange])))


@pytest.mark.parametrize(
    ("worker", "dataset", "is_embedded"),
    [
        ({"type": "HuggingFaceWorker", "args": {"model": "tinylm/target"}}, None, True),
        ({"type": "HuggingFaceWorker", "args": {"model": "org/mine"}}, "tinylm:held_out", False),
        ({"type": "BudgetedWorker", "args": {"worker": {"args": {"model": "tinylm/draft"}}}}, None, True),
    ],
)
def test_it_asks_what_the_model_can_read(worker: Any, dataset: str | None, is_embedded: bool) -> None:
    more = {} if dataset is None else {"dataset": dataset}
    questions = questions_of(load_config({"controller": NATIVE, "workers": {"generation": worker}, **more}))
    assert len(questions) == 2
    assert questions[0].startswith("What is 17") != is_embedded
