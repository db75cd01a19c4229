"""Costs of the host in function calls: a count that repeats on any machine, which a time would not."""

from __future__ import annotations

from typing import Any, ClassVar

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask, TaskStatus, Worker

NUM_REQUESTS = 16


class InstantWorker(Worker):
    """Answers at once."""

    async def _generate(self, task: GenerationTask) -> TaskStatus:
        task.output_str, task.output_tokens = "\\boxed{1}", [1]
        return TaskStatus.SUCCESS

    task_handlers: ClassVar[dict[Any, Any]] = {GenerationTask: _generate}


def calls_a_task(count: Any, num_samples: int) -> float:
    controller = MajorityVoteController(NativeGenerationController({"temperature": 0.7}), num_samples, allocation=None)
    with ScaffoldingLlm(controller, {"generation": InstantWorker()}, seed=0) as llm:
        llm.generate(["warm up"] * 8)
        before = count.num
        with count.on_loop(llm.loop):
            llm.generate(["question"] * NUM_REQUESTS)
    return float(count.num - before) / (NUM_REQUESTS * num_samples)


def test_a_task_of_a_wide_vote_costs_no_more_than_one_of_a_narrow_vote(call_count: Any) -> None:
    narrow, wide = calls_a_task(call_count, 16), calls_a_task(call_count, 64)
    assert 0 < wide <= narrow
