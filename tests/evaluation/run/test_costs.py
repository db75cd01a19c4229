"""The cost of a record in `eval`, in function calls on the thread that runs it, without the host's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.evaluation.run.records import Record, record_writer
from scaffolding_ext.evaluation.run.run_stats import RunStats
from scaffolding_ext.evaluation.run.runner import evaluate
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask, TaskStatus, Worker


class InstantWorker(Worker):
    """Answers at once."""

    async def _generate(self, task: GenerationTask) -> TaskStatus:
        task.output_str, task.output_tokens = "\\boxed{1}", [1]
        return TaskStatus.SUCCESS

    task_handlers: ClassVar[dict[Any, Any]] = {GenerationTask: _generate}


def test_a_record_costs_as_much_among_many_as_among_few(call_count: Any, tmp_path: Path) -> None:
    tally = RunStats()

    def run(llm: ScaffoldingLlm, num_samples: int) -> None:
        samples = [Example(f"q{number}", f"Question {number}", "1") for number in range(num_samples)]
        with record_writer(tmp_path / str(num_samples), clock=lambda: 0.0) as write:

            def keep(record: Record) -> None:
                write(record)
                tally.add(record)

            evaluate(llm, samples, on_record=keep)

    def calls_a_record(llm: ScaffoldingLlm, num_samples: int) -> float:
        before = call_count.num
        call_count.start()
        try:
            run(llm, num_samples)
        finally:
            call_count.stop()
        return float(call_count.num - before) / num_samples

    controller = NativeGenerationController({"temperature": 0.7})
    with ScaffoldingLlm(controller, {"generation": InstantWorker()}, 1, seed=0) as llm:
        run(llm, 10)
        few, many = calls_a_record(llm, 50), calls_a_record(llm, 200)
    assert tally.num_correct == 260
    assert 0 < many <= 1.05 * few
