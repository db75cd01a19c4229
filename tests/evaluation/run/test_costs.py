"""What a record costs in `eval`, in function calls on the thread that runs it; the host's own are counted elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.evaluation.run.records import Record, record_writer
from scaffolding_ext.evaluation.run.run_stats import RunStats
from scaffolding_ext.evaluation.run.runner import evaluate_async
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask, TaskStatus, Worker

NUM_SAMPLES = 200


class InstantWorker(Worker):
    """Answers at once."""

    async def _generate(self, task: GenerationTask) -> TaskStatus:
        task.output_str, task.output_tokens = "\\boxed{1}", [1]
        return TaskStatus.SUCCESS

    task_handlers: ClassVar[dict[Any, Any]] = {GenerationTask: _generate}


def test_a_record(call_count: Any, within_ceiling: Callable[[str, float], None], tmp_path: Path) -> None:
    samples = [Example(f"q{number}", f"Question {number}", "1") for number in range(NUM_SAMPLES)]
    tally = RunStats()

    async def run(llm: ScaffoldingLlm, name: str) -> None:
        with record_writer(tmp_path / name, clock=lambda: 0.0) as write:

            def keep(record: Record) -> None:
                write(record)
                tally.add(record)

            await evaluate_async(llm, samples, on_record=keep)

    controller = NativeGenerationController({"temperature": 0.7})
    with ScaffoldingLlm(controller, {"generation": InstantWorker()}, 1, seed=0) as llm:
        asyncio.run(run(llm, "warm_up"))
        call_count.start()
        try:
            asyncio.run(run(llm, "counted"))
        finally:
            call_count.stop()
    assert tally.num_correct == 2 * NUM_SAMPLES
    within_ceiling("eval, calls a record", call_count.num / NUM_SAMPLES)
