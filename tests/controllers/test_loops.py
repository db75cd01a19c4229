"""Chains that repeat themselves are ended and asked for their answer, whichever controller grows them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.budgets.budget_forcing import BudgetForcingController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.draft_target.coin import Coin
from scaffolding_ext.controllers.draft_target.conformal_draft_target import ConformalDraftTargetController
from scaffolding_ext.controllers.repetition import Loops
from scaffolding_ext.controllers.tree.kv_share_branching import KVShareBranchingController
from scaffolding_ext.controllers.vote.deepconf import DeepConfController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask
from scaffolding_ext.protocol.meta import CONTINUED_TURNS, Purpose
from scaffolding_ext.testing import ScriptedWorker

Events = Callable[..., list[dict[str, Any]]]
QUESTION = "What is 6 * 7?"
LOOP = "Wait, is that right? "
CHAIN = "Six times seven, I think, is what is asked for here. " + LOOP * 400
BUDGET = 2_000  # tokens, which are characters


def reply(task: Any) -> str:
    """The chain from where the prompt stands, or the answer to whoever asks for it."""
    prompt = task.input_str or "".join(map(chr, task.input_tokens))
    return "42}" if prompt.endswith("boxed{") else CHAIN[len(prompt) - len(QUESTION) :]


def answered(controller: Any, loops: Loops | None = None, worker: ScriptedWorker | None = None, **kwargs: Any) -> Any:
    worker = worker or ScriptedWorker(reply, logprobs=lambda task, index: {ord("a"): -0.1} | some(task, index))
    controller.loops = loops or Loops()
    workers = dict.fromkeys(("generation", "draft", "target"), worker)
    with ScaffoldingLlm(controller, workers, seed=0) as llm:
        return llm.generate(QUESTION, **kwargs)


def some(task: Any, index: int) -> dict[int, float]:
    return {ord(reply(task)[index]): -0.5}


SINGLE = {
    "plain": lambda: NativeGenerationController({"max_tokens": BUDGET}),
    "dynasor": lambda: DynasorCoTController(BUDGET, 999),
    "dynasor in chunks": lambda: DynasorCoTController(BUDGET, 999, mode="chunk"),
    "budget": lambda: BudgetForcingController(BUDGET),
    "budget of a controller": lambda: BudgetForcingController(BUDGET, NativeGenerationController()),
    "budget of dynasor": lambda: BudgetForcingController(BUDGET, DynasorCoTController(BUDGET, 999)),
    "draft and target": lambda: ConformalDraftTargetController(
        rule=Coin(0.5), num_chains=1, max_turns=99, max_tokens=BUDGET
    ),
}


@pytest.mark.parametrize("name", SINGLE)
def test_a_chain_that_loops_is_asked_for_its_answer(name: str, events: Events) -> None:
    result = answered(SINGLE[name]())
    assert (result.answer, result.exit_reason) == ("42", "loop")
    found = events(result, "loop")
    assert found[-1]["unit"] in ("tokens", "characters")
    assert found[-1]["period"] == len(LOOP)
    assert result.outputs[0].text.startswith(CHAIN[:150])
    assert result.outputs[0].text.count("boxed{42}") == 1


@pytest.mark.parametrize("name", ["plain", "dynasor", "dynasor in chunks", "draft and target", "budget"])
def test_it_is_left_as_soon_as_it_loops(name: str, events: Events) -> None:
    result = answered(SINGLE[name]())
    (found,) = events(result, "loop")
    num_repeated = 4 * 64 if found["unit"] == "characters" else 4 * len(LOOP)
    lasting = num_repeated + CHAIN.index(LOOP)
    assert lasting <= found["position"] < lasting + 64
    assert result.program.ledger.num_decoded < BUDGET / 2


def test_a_loop_is_found_in_a_chunk_that_its_length_ends_and_in_none_that_ends_by_itself(events: Events) -> None:
    def in_one_chunk(max_tokens: int) -> Any:
        return answered(DynasorCoTController(max_tokens, 999, mode="chunk", chunk_size=BUDGET))

    assert in_one_chunk(400).exit_reason == "loop"
    ends = ScriptedWorker(lambda task: CHAIN[:400] if task.input_str == QUESTION else "42}")
    result = answered(DynasorCoTController(BUDGET, 999, mode="chunk", chunk_size=BUDGET), worker=ends)
    assert result.exit_reason != "loop"
    assert not events(result, "loop")


@pytest.mark.parametrize("name", ["plain", "dynasor"])
def test_nothing_is_watched_by_default(name: str, events: Events) -> None:
    controller = SINGLE[name]()
    assert controller.loops is None
    worker = ScriptedWorker(reply)
    with ScaffoldingLlm(controller, dict.fromkeys(("generation", "draft", "target"), worker), seed=0) as llm:
        result = llm.generate(QUESTION)
    assert result.exit_reason in ("length", "max_turns")
    assert not events(result, "loop")


@pytest.mark.parametrize(
    "controller",
    [
        MajorityVoteController(NativeGenerationController({"max_tokens": BUDGET, "temperature": 0.7}), 3),
        DeepConfController(3, max_tokens=BUDGET),
        KVShareBranchingController(3, max_tokens=BUDGET),
    ],
    ids=lambda controller: type(controller).__name__,
)
def test_every_chain_of_a_controller_with_several_is_watched(controller: Any, events: Events) -> None:
    result = answered(controller)
    assert result.answer == "42"
    assert len(events(result, "loop")) >= 2


def test_a_plain_stream_that_is_left_counts_what_it_decoded_in_vain() -> None:
    result = answered(SINGLE["plain"]())
    spent = result.program.ledger.by_purpose
    assert spent[Purpose.PROBE].decoded == 3
    assert spent[Purpose.CHAIN].decoded == len(result.outputs[0].text.partition("\n\n...</think>")[0])


def test_a_plain_text_without_a_loop_is_as_it_was_without_a_watch(events: Events) -> None:
    text = "Six times seven is \\boxed{42}, since seven times six is."
    watched = answered(SINGLE["plain"](), worker=ScriptedWorker(text))
    with ScaffoldingLlm(SINGLE["plain"](), {"generation": ScriptedWorker(text)}, seed=0) as llm:
        plain = llm.generate(QUESTION)
    for each in (watched, plain):
        assert (each.outputs[0].text, each.answer, each.exit_reason) == (text, "42", "end")
    assert watched.outputs[0].token_ids == plain.outputs[0].token_ids
    assert watched.program.ledger.by_purpose == plain.program.ledger.by_purpose


def test_a_plain_budget_ends_a_watched_text_as_it_ends_another() -> None:
    result = answered(NativeGenerationController({"max_tokens": 40}))
    assert (result.outputs[0].text, result.exit_reason) == (CHAIN[:40], "length")


@pytest.mark.parametrize("fields", [{"n": 2}, {"best_of": 2}])
def test_tasks_of_several_texts_are_sent_as_they_are(fields: dict[str, int]) -> None:
    worker = ScriptedWorker(reply)
    answered(SINGLE["plain"](), worker=worker, **fields)
    assert [type(task) for task in worker.tasks] == [GenerationTask]


def test_log_probabilities_come_through_a_watched_text() -> None:
    worker = ScriptedWorker("It is 42.", logprobs=lambda task, index: {ord("It is 42."[index]): -0.5})
    result = answered(SINGLE["plain"](), worker=worker, num_logprobs=1)
    assert [type(task) for task in worker.tasks] == [StreamGenerationTask]
    assert len(result.outputs[0].logprobs) == len("It is 42.")


def test_an_answer_is_not_watched(events: Events) -> None:
    text = "I think.</think>" + LOOP * 400
    result = answered(SINGLE["plain"](), worker=ScriptedWorker(text))
    assert result.exit_reason == "length"
    assert not events(result, "loop")


def test_the_arguments_say_what_a_loop_is(events: Events) -> None:
    result = answered(SINGLE["plain"](), Loops(50))
    (found,) = events(result, "loop")
    assert found["position"] >= 50 * len(LOOP)
    assert found["num_repeats"] >= 50


def test_an_exact_budget_is_thought_out(events: Events) -> None:
    controller = BudgetForcingController(600, exact=True)
    result = answered(controller)
    assert result.exit_reason == "length"
    assert not events(result, "loop")


def test_what_a_client_reads_of_a_watched_stream_stands() -> None:
    controller = SINGLE["plain"]()
    controller.loops = Loops()
    seen = []
    with ScaffoldingLlm(controller, {"generation": ScriptedWorker(reply)}, seed=0) as llm:
        result = llm.generate_async(QUESTION, streaming=True)

        async def read() -> None:
            seen.extend([part.outputs[0].text async for part in result])

        asyncio.run(read())
    text = result.outputs[0].text
    assert all(text.startswith(part) for part in seen)
    assert result.exit_reason == "loop"


def test_a_worker_that_cannot_be_asked_for_an_answer_is_refused() -> None:
    worker = ScriptedWorker(reply)
    worker.refused = {CONTINUED_TURNS: "its server cannot"}  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="its server cannot"):
        answered(SINGLE["plain"](), worker=worker)
