"""A user's code on the public API; `tests/test_typing.py` has mypy check it, strictly. It is not run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

from scaffolding_ext import (
    BaseController,
    BudgetForcingController,
    Completion,
    ConfigError,
    DynasorCoTController,
    HuggingFaceWorker,
    NativeGenerationController,
    Prompting,
    ScaffoldingLlm,
    ScaffoldingResult,
    StackConfig,
    TokenCounts,
    WorkerTag,
    build_stack,
    load_config,
    load_stack,
)
from scaffolding_ext.evaluation.run.datasets import Example, load_dataset
from scaffolding_ext.evaluation.run.records import Record
from scaffolding_ext.evaluation.run.runner import evaluate
from scaffolding_ext.evaluation.run.summary import Summary, summarize
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask, TaskStatus, Worker
from scaffolding_ext.protocol.meta import note
from scaffolding_ext.protocol.standins import TaskHandler
from scaffolding_ext.protocol.task_results import output_of
from scaffolding_ext.registry import controllers
from scaffolding_ext.testing import FakeClock, ScriptedWorker


@controllers.register("Twice")
class Twice(BaseController):
    """A user's controller."""

    def __init__(self, generation_controller: NativeGenerationController, times: int = 2) -> None:
        super().__init__()
        self.generation_controller = generation_controller
        self.times = times

    def run(self, task: GenerationTask, **kwargs: Any) -> ControllerGenerator:
        for _ in range(self.times):
            yield from self.generation_controller.process([task], **kwargs)


class Echo(Worker):
    """A user's worker."""

    model: ClassVar[None] = None

    async def _generate(self, task: GenerationTask) -> TaskStatus:
        task.output_str, task.output_tokens = task.input_str, [1]
        note(task, counts=TokenCounts(decoded=1))
        return TaskStatus.SUCCESS

    task_handlers: ClassVar[dict[type[Any], TaskHandler]] = {GenerationTask: _generate}


def build() -> ScaffoldingLlm:
    controller = Twice(NativeGenerationController({"temperature": 0.7}))
    controller.prompting = Prompting.for_model("tinylm/target", system_prompt="Be brief.")
    workers: Mapping[WorkerTag, Worker] = {WorkerTag.GENERATION: HuggingFaceWorker("tinylm/target", threads=1)}
    return ScaffoldingLlm(controller, workers, 8, seed=0, owns_workers=True)


def ask(llm: ScaffoldingLlm) -> tuple[str | None, int]:
    result: ScaffoldingResult = llm.generate("How many?", timeout=5.0)
    several: list[ScaffoldingResult] = llm.generate(["One?", "Two?"])
    answer: str | None = several[0].answer
    output = result.outputs[0]
    reason: str | None = output.exit_reason if isinstance(output, Completion) else None
    return answer or reason, result.program.ledger.total.decoded


async def wait(llm: ScaffoldingLlm, samples: list[Example]) -> list[Record]:
    await llm.generate_async("How many?", sample_id="a", epoch=1)
    async for part in llm.generate_async("How many?"):
        assert part is not None
    return await asyncio.to_thread(evaluate, llm, samples, epochs=2)


def measure(source: str) -> float | None:
    config: StackConfig = load_config(source, ["seed=3"])
    with build_stack(config) as llm, load_stack({"controller": {"type": "Twice"}}) as other:
        summary: Summary = summarize(evaluate(llm, load_dataset("tinylm:held_out"), timeout=1.0))
        assert other.seed is None
    return summary.accuracy


def answered(task: GenerationTask) -> str:
    try:
        return output_of(task)
    except ConfigError as error:
        return error.key


doubles = (ScriptedWorker("text"), FakeClock(1.0), DynasorCoTController(chunk_size=32), BudgetForcingController(64))
