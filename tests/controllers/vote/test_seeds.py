"""Samples, chains and traces have seeds of their own, wherever the one comes from that is set for all of them."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterable
from typing import Any

import pytest

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.draft_target.conformal_draft_target import ConformalDraftTargetController
from scaffolding_ext.controllers.vote.deepconf import DeepConfController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import Controller, GenerationTask, ParallelProcess, TaskStatus
from scaffolding_ext.protocol.meta import Purpose, purpose_of
from scaffolding_ext.protocol.task_results import TokenLogprob
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.testing.controller_contract import contract_reply

SEEDED = {"seed": 5, "temperature": 0.7}


class Foreign(Controller):
    """As upstream's: sets what is None from its own sampling parameters, and says no answer."""

    def __init__(self, sampling_params: dict[str, Any]) -> None:
        super().__init__()
        self.sampling_params = sampling_params

    def process(self, tasks: list[Any], **kwargs: Any) -> Any:
        for task in tasks:
            task.worker_tag = WorkerTag.GENERATION
            for name, value in self.sampling_params.items():
                if getattr(task, name) is None:
                    setattr(task, name, value)
        yield tasks


def seeds(controller: BaseController) -> list[int | None]:
    """The seed of each task that writes a chain, under a host that opens no program and draws no seeds."""
    worker = ScriptedWorker(contract_reply)

    async def drive(work_items: Iterable[Any]) -> None:
        for work in work_items:
            if isinstance(work, ParallelProcess):
                for branch in work.sub_gens:
                    await drive(branch)
            else:
                for task in work:
                    assert await worker.run_task(task) is TaskStatus.SUCCESS
                    if isinstance(task, GenerationTask):
                        task.logprobs = [{token: TokenLogprob(-1.0)} for token in task.output_tokens or ()]

    workers = dict.fromkeys(WorkerTag, worker)
    controller.bind(workers)
    contextvars.Context().run(lambda: asyncio.run(drive(controller.clone().generate("Question 17"))))
    drawn = [task for task in worker.tasks if isinstance(task, GenerationTask)]
    return [task.seed for task in drawn if purpose_of(task).written is Purpose.CHAIN]


CASES = {
    "vote": (6, lambda: MajorityVoteController(NativeGenerationController(SEEDED), 6, allocation=None)),
    "foreign": (6, lambda: MajorityVoteController(Foreign(SEEDED), 6, allocation=None)),
    "vote_of_votes": (
        6,
        lambda: MajorityVoteController(
            MajorityVoteController(NativeGenerationController(SEEDED), 3, allocation=None), 2, allocation=None
        ),
    ),
    "dynasor": (
        3,
        lambda: MajorityVoteController(
            DynasorCoTController(mode="stream", chunk_size=900, sampling_params=SEEDED), 3, allocation=None
        ),
    ),
    "deepconf": (4, lambda: DeepConfController(4, sampling_params=SEEDED, top_k=1, max_tokens=900)),
    "draft_target": (
        None,
        lambda: ConformalDraftTargetController(
            coverage="conditional",
            alpha=0.4,
            num_chains=4,
            draft_controller=NativeGenerationController(SEEDED),
            target_controller=NativeGenerationController(SEEDED),
        ),
    ),
}


@pytest.mark.filterwarnings("ignore:the take-over rule. coverage 'conditional'")
@pytest.mark.parametrize("name", CASES)
def test_no_two_samples_share_a_seed_that_was_set_for_all(name: str) -> None:
    num_expected, make = CASES[name]
    found = seeds(make())
    assert None not in found
    assert len(set(found)) == len(found) >= 4 or num_expected == len(set(found)) == len(found)
    if num_expected is not None:  # draft and target draw by themselves who is to write
        assert seeds(make()) == found


def test_chunks_of_one_chain_have_seeds_of_their_own_too() -> None:
    found = seeds(DynasorCoTController(mode="chunk", chunk_size=24, sampling_params=SEEDED))
    assert len(set(found)) == len(found) > 2


def test_a_foreign_controllers_answers_are_read_from_its_texts() -> None:
    controller = MajorityVoteController(Foreign({"max_tokens": 900}), 3, allocation=None)
    with ScaffoldingLlm(controller, {"generation": ScriptedWorker(contract_reply)}) as llm:
        result = llm.generate("Question 17")
    assert (result.answer, result.exit_reason) == ("17", "vote")
