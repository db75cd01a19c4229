"""What the host costs, in function calls: a count that repeats on any machine, where a time would not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask, TaskStatus, Worker

WIDTH, NUM_REQUESTS = 16, 64


class InstantWorker(Worker):
    """Answers at once."""

    async def _generate(self, task: GenerationTask) -> TaskStatus:
        task.output_str, task.output_tokens = "\\boxed{1}", [1]
        return TaskStatus.SUCCESS

    task_handlers: ClassVar[dict[Any, Any]] = {GenerationTask: _generate}


def calls_a_task(count: Any) -> float:
    controller = MajorityVoteController(NativeGenerationController({"temperature": 0.7}), WIDTH, allocation=None)
    with ScaffoldingLlm(controller, {"generation": InstantWorker()}, seed=0) as llm:
        llm.generate(["warm up"] * 8)
        with count.on_loop(llm.loop):
            llm.generate(["question"] * NUM_REQUESTS)
    return float(count.num) / (NUM_REQUESTS * WIDTH)


def test_a_task_of_a_vote(call_count: Any, within_ceiling: Callable[[str, float], None]) -> None:
    within_ceiling("host, calls a task of a vote of 16", calls_a_task(call_count))
