"""Budgets of thinking: kept by a server that is seen to, and else by the controller, which says so."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.budgets.budget_forcing import BudgetForcingController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.meta import ThinkingBudget, note
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.workers.openai.flavors import FLAVORS
from scaffolding_ext.workers.openai.requests import RequestBodies
from scaffolding_ext.workers.openai.worker import OpenAIWorker
from tests.servers.openai_server import OpenAIServer

MODEL = "tinylm/target"
THINKING = "Okay, by columns first. " * 13
DIALECTS: dict[tuple[str, bool], dict[str, Any]] = {
    **{(flavor, chat): {"thinking_token_budget": 20} for flavor in ("vllm", "trtllm") for chat in (False, True)},
    **{("sglang", chat): {"custom_params": {"thinking_budget": 20}} for chat in (False, True)},
    ("llama_cpp", True): {"thinking_budget_tokens": 20},
    ("llama_cpp", False): {
        "reasoning_budget_tokens": 20,
        "reasoning_budget_start_tag": "<think>",
        "reasoning_budget_end_tag": "</think>",
        "reasoning_budget_end_tags": ["</think>"],
        "reasoning_budget_message": "",
        "generation_prompt": "<think>",
    },
}
Serve = Callable[..., tuple[OpenAIServer, OpenAIWorker]]


@pytest.fixture(scope="module")
def prompting() -> Prompting:
    return Prompting.for_model(MODEL)


@pytest.fixture(scope="module")
def speaking(prompting: Prompting) -> Callable[[str], ScriptedWorker]:
    """Makes workers that write a text in the model's tokens, and the answer 4 where one is asked for."""

    class Speaking(ScriptedWorker):
        def _write(self, task: Any, generation: Any, num_tokens: int) -> None:
            super()._write(task, generation, num_tokens)
            task.output_str = prompting.decode(task.output_tokens)

    def make(text: str) -> ScriptedWorker:
        def reply(task: Any) -> list[int]:
            read = task.input_str or prompting.decode(task.input_tokens)
            return prompting.encode("4}." if read.endswith("boxed{") else text)

        return Speaking(reply)

    return make


@pytest.fixture
def serve(prompting: Prompting, speaking: Callable[[str], ScriptedWorker]) -> Iterator[Serve]:
    """Servers of such workers, and workers for them."""
    with contextlib.ExitStack() as stack:

        def start(text: str, flavor: str = "vllm", **options: Any) -> tuple[OpenAIServer, OpenAIWorker]:
            server = stack.enter_context(
                OpenAIServer(
                    speaking(text), MODEL, flavor=flavor, encode=prompting.encode, decode=prompting.decode, **options
                )
            )
            return server, stack.enter_context(
                OpenAIWorker(server.url, MODEL, flavor=flavor, max_seq_len=2048, max_retries=0)
            )

        yield start


def ask(worker: OpenAIWorker, controller: Any = None, **kwargs: Any) -> Any:
    with ScaffoldingLlm(controller or NativeGenerationController({"max_tokens": 120}), {"generation": worker}) as llm:
        return llm.generate("What is 2+2?", **kwargs)


def said(result: Any) -> list[dict[str, Any]]:
    return [event for event in result.program.trace if event["event"] == "thinking_budget"]


@pytest.mark.parametrize("flavor", ["vllm", "sglang"])
def test_a_server_is_asked_in_its_dialect_and_counted(serve: Serve, prompting: Prompting, flavor: str) -> None:
    thinking = prompting.decode(prompting.encode(THINKING)[:20])
    server, worker = serve(f"{thinking}</think>\nThe answer is \\boxed{{4}}.", flavor)
    result = ask(worker, thinking_budget=20)
    assert len(server.requests) == 1
    assert server.requests[0].body.items() >= DIALECTS[flavor, False].items()
    assert result.answer == "4"
    (event,) = said(result)
    assert (event["asked"], event["by"], event["num_thinking"]) == (20, "server", 20)
    assert worker.server_budget.reason is None


@pytest.mark.parametrize(("over", "by"), [(8, "server"), (9, "controller")])
def test_a_server_may_finish_a_word_before_it_closes(serve: Serve, prompting: Prompting, over: int, by: str) -> None:
    thinking = prompting.decode(prompting.encode(THINKING)[: 20 + over])
    _, worker = serve(f"{thinking}</think>\nThe answer is \\boxed{{5}}.")
    result = ask(worker, thinking_budget=20)
    (event,) = said(result)
    assert event["by"] == by
    assert result.answer == ("5" if by == "server" else "4")
    assert (worker.server_budget.reason is None) == (by == "server")


@pytest.mark.parametrize(("flavor", "chat"), sorted(DIALECTS))
def test_each_server_has_its_dialect(flavor: str, chat: bool) -> None:
    task = GenerationTask(input_str="2+2?<think>\n", max_tokens=100)
    note(task, thinking=ThinkingBudget(20, "<think>", "</think>", True))
    bodies = RequestBodies(FLAVORS[flavor], "served", MODEL, 2048, chat)
    asked = DIALECTS[flavor, chat]
    assert bodies.generation(task, stream=False).items() >= asked.items()
    note(task, thinking=None)
    assert not bodies.generation(task, stream=False).keys() & asked.keys()


def test_where_the_server_ignores_the_budget_the_controller_keeps_it_and_says_so(
    serve: Serve, prompting: Prompting
) -> None:
    server, worker = serve(f"{THINKING}</think>\nThe answer is \\boxed{{5}}.")
    first, second = (ask(worker, thinking_budget=20) for _ in range(2))
    thinking = prompting.decode(prompting.encode(THINKING)[:20])
    for result in (first, second):
        assert result.outputs[0].text == f"{thinking}</think>\nThe answer is \\boxed{{4}}."
        (event,) = said(result)
        assert (event["by"], event["num_thinking"]) == ("controller", 20)
        assert "it let" in event["reason"]
    assert first.program.ledger.total.decoded > second.program.ledger.total.decoded  # it is not asked again
    assert first.program.ledger.discarded_share > 0
    assert "thinking_token_budget" not in server.requests[-1].body


def test_what_follows_the_first_closing_mark_is_no_thinking(serve: Serve, prompting: Prompting) -> None:
    early = prompting.decode(prompting.encode(THINKING)[:10])
    _, worker = serve(f"{early}</think>{THINKING}</think>\nThe answer is \\boxed{{5}}.")
    result = ask(worker, thinking_budget=20)
    assert (said(result)[0]["by"], said(result)[0]["num_thinking"]) == ("server", 10)
    assert result.answer == "5"


@pytest.mark.parametrize(("flavor", "asked"), [("vllm", False), ("sglang", False), ("openai", None)])
def test_a_server_shows_marks_that_are_special_tokens(serve: Serve, flavor: str, asked: bool | None) -> None:
    server, worker = serve("\\boxed{4}.", flavor)
    for shows_special, expected in ((True, asked), (False, None)):
        controller = NativeGenerationController({"max_tokens": 20})
        controller.prompting = Prompting.for_model(MODEL)
        controller.prompting.shows_special = shows_special
        ask(worker, controller)
        assert server.requests[-1].body.get("skip_special_tokens") is expected


def test_a_server_that_refuses_the_field_is_asked_without_it(serve: Serve, prompting: Prompting) -> None:
    names = {"model", "prompt", "max_tokens", "temperature", "seed", "stop", *FLAVORS["vllm"].neutral}
    allowed = frozenset({*names, "return_token_ids", "add_special_tokens"})
    _, worker = serve(f"{THINKING}</think>\nThe answer is \\boxed{{5}}.", allowed=allowed)
    result = ask(worker, thinking_budget=20)
    (event,) = said(result)
    assert event["by"] == "controller"
    assert "refused" in event["reason"]
    assert result.answer == "4"


def test_a_server_without_a_budget_is_not_asked(serve: Serve) -> None:
    server, worker = serve(f"{THINKING}</think>\nThe answer is \\boxed{{5}}.", "openai")
    result = ask(worker, thinking_budget=20)
    assert "take no thinking budget" in said(result)[0]["reason"]
    assert server.requests[0].body["max_tokens"] == 20


@pytest.mark.parametrize(
    "controller",
    [
        BudgetForcingController(1000),
        DynasorCoTController(1000, 9),
        MajorityVoteController(NativeGenerationController({"temperature": 1.0, "max_tokens": 200}), 2, allocation=None),
    ],
    ids=lambda controller: type(controller).__name__,
)
def test_every_controller_that_honours_budgets_keeps_them(
    prompting: Prompting, speaking: Callable[[str], ScriptedWorker], controller: Any
) -> None:
    assert "thinking_budget" in controller.needs.fields
    controller.prompting = prompting

    with ScaffoldingLlm(controller, {"generation": speaking(THINKING * 9)}) as llm:
        result = llm.generate("What is 2+2?", thinking_budget=20)
    prefix, _, _ = prompting.decode(result.outputs[0].token_ids).partition("</think>")
    assert len(prompting.encode(prefix)) == 20
    assert result.answer == "4"
