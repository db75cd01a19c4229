"""A stack's stop strings end the answer, wherever they occur in the thinking before it."""

from __future__ import annotations

from typing import Any

import pytest

from scaffolding_ext.controllers import prompting
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.budgets.budget_forcing import BudgetForcingController
from scaffolding_ext.controllers.chain.chunk_chain import Chunk, ChunkChain
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, Worker
from scaffolding_ext.protocol.meta import Purpose, is_urgent, meta_of
from scaffolding_ext.request.results import ScaffoldingResult
from scaffolding_ext.testing import ScriptedWorker

STOP = ["Q:", "\n\n"]
THOUGHT = "The Q: says 4+5.\n\nFirst \\boxed{8}? No, Q: it is nine."
PARAMS = {"max_tokens": 400, "stop": STOP}


class PlainWorker(ScriptedWorker):
    """Cannot stream."""

    task_handlers = {GenerationTask: ScriptedWorker.task_handlers[GenerationTask]}  # noqa: RUF012


CONTROLLERS = {
    "native": lambda: NativeGenerationController(PARAMS),
    "vote": lambda: MajorityVoteController(
        NativeGenerationController({**PARAMS, "temperature": 0.7}), 2, allocation=None
    ),
    "stream": lambda: DynasorCoTController(400, 99, 16, sampling_params={"stop": STOP}),
    "chunk": lambda: DynasorCoTController(400, 99, 16, mode="chunk", sampling_params={"stop": STOP}),
    "budget": lambda: BudgetForcingController(300, max_answer_tokens=100, sampling_params={"stop": STOP}),
}


def answered(make: Any, text: str, prompting: Any = None, worker: type[Worker] = ScriptedWorker) -> ScaffoldingResult:
    controller = make()
    controller.prompting = prompting

    def respond(task: GenerationTask) -> str:
        start = meta_of(task).turn_start
        begun = "" if start is None else (task.input_str or "")[start:]
        return "0}" if is_urgent(task) else text[len(begun) :]

    asked: Any = worker(respond)  # type: ignore[call-arg]
    with ScaffoldingLlm(controller, {"generation": asked}) as llm:
        return llm.generate("4+5?")


@pytest.mark.parametrize("worker", [ScriptedWorker, PlainWorker])
@pytest.mark.parametrize("name", CONTROLLERS)
@pytest.mark.parametrize("prompting", [None, Prompting.for_model("tinylm/target")], ids=["unknown", "open"])
def test_a_stop_string_ends_the_answer_and_not_the_thinking(name: str, worker: Any, prompting: Any) -> None:
    text = f"{THOUGHT}</think>\nIt is \\boxed{{9}}.\n\nQ: 1+1? \\boxed{{2}}"
    result = answered(CONTROLLERS[name], text, prompting, worker)
    assert result.answer == "9"
    assert result.outputs[0].text == f"{THOUGHT}</think>\nIt is \\boxed{{9}}."


@pytest.mark.parametrize("name", CONTROLLERS)
def test_without_a_stop_string_in_the_answer_all_of_it_stays(name: str) -> None:
    text = f"{THOUGHT}</think>\nIt is \\boxed{{9}}."
    assert answered(CONTROLLERS[name], text).outputs[0].text == text


@pytest.mark.filterwarnings("ignore:the model's chat template has no")
@pytest.mark.parametrize("name", CONTROLLERS)
def test_a_model_that_does_not_think_is_stopped_by_its_worker(name: str) -> None:
    result = answered(CONTROLLERS[name], "It is \\boxed{9}.\n\nQ: 1+1?", Prompting(chat=False))
    assert result.answer == "9"
    assert "Q:" not in (result.outputs[0].text or "")


def test_what_was_written_behind_the_stop_string_is_discarded() -> None:
    text = f"{THOUGHT}</think>\nIt is \\boxed{{9}}.\n\n" + "Q: again? " * 30
    result = answered(CONTROLLERS["native"], text)
    tokens = result.program.ledger.by_purpose
    assert result.outputs[0].token_ids is not None
    assert len(result.outputs[0].token_ids) <= len(text)
    assert tokens[Purpose.CHAIN].decoded < len(text)  # the stream is left
    assert StreamGenerationTask in ScriptedWorker.task_handlers


@pytest.mark.parametrize("kind", ["search", "draft"])
def test_trees_and_drafts_keep_them_for_the_answer_too(kind: str) -> None:
    text = f"{THOUGHT}</think>\nIt is \\boxed{{9}}.\n\nQ: 1+1? \\boxed{{2}}"
    chain = ChunkChain(GenerationTask(input_str="4+5?", stop=STOP), 400, {})
    for begin in range(0, len(text), 7):
        piece = chain.next_chunk(7) if kind == "draft" else chain.advance(chain.num_tokens + 7)[0]
        assert isinstance(piece, GenerationTask)
        assert not piece.stop
        chain.keep(Chunk(text[begin : begin + 7], None, 7, 7, "length"), STOP if kind == "draft" else piece.stop)
        if chain.ended:
            break
    assert chain.text == f"{THOUGHT}</think>\nIt is \\boxed{{9}}."
    assert (chain.finish_reason, chain.is_stopped) == ("stop", True)


def test_a_stopped_answer_has_the_log_probabilities_of_its_own_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompting, "decode", lambda ids: "".join(map(chr, ids)))
    kept = f"{THOUGHT}</think>\nIt is \\boxed{{9}}.\n\n"
    worker = PlainWorker(kept + "Q: 1+1?", logprobs=lambda task, index: {index: -1.0})
    controller = NativeGenerationController({**PARAMS, "num_logprobs": 1})
    with ScaffoldingLlm(controller, {"generation": worker}) as llm:
        llm.generate("4+5?")
    task: Any = worker.tasks[0]
    assert len(task.output_tokens) == len(task.logprobs) == len(kept)
