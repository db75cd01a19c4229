"""The first samples to end vote; the others are stopped, and what they decoded is counted as discarded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from scaffolding_ext import HuggingFaceWorker, MajorityVoteController, ScaffoldingLlm
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.vote.allocation.baselines import Even
from scaffolding_ext.errors import TaskError
from scaffolding_ext.evaluation.run.datasets import load_dataset
from scaffolding_ext.protocol import GenerationTask, TaskStatus
from scaffolding_ext.protocol.meta import Purpose, TokenCounts, note
from scaffolding_ext.protocol.worker import BaseWorker

NUM_SAMPLES, NUM_FIRST = 6, 2


class Ordered(BaseWorker):
    """Ends its calls in an order of its own; those that must wait wait for ever, and tell when they are cancelled."""

    tasks = (GenerationTask,)

    def __init__(self, num_ending: int, fails: bool = False) -> None:
        super().__init__()
        self.num_calls = self.num_cancelled = 0
        self.num_ending, self.fails = num_ending, fails

    async def run_task(self, task: Any) -> TaskStatus:
        self.num_calls += 1
        number = self.num_calls
        note(task, counts=TokenCounts(10 * number, 1, 0))
        if number > self.num_ending:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.num_cancelled += 1
                raise
        if self.fails:
            raise RuntimeError("the engine is gone")
        task.output_str, task.output_tokens = f"so \\boxed{{{number}}}", [1] * 10 * number
        return TaskStatus.SUCCESS


def vote(num_first: int = NUM_FIRST) -> MajorityVoteController:
    native = NativeGenerationController({"temperature": 0.7, "max_tokens": 1000})
    rule = Even(num_samples=num_first)
    return MajorityVoteController(native, NUM_SAMPLES, allocation=rule, in_flight=NUM_SAMPLES, order="arrival")


def run(worker: Any, prompt: str = "what?", controller: Any = None) -> Any:
    with ScaffoldingLlm(controller or vote(), {"generation": worker}, seed=1) as llm:
        return llm.generate(prompt, timeout=60)


def test_the_others_are_stopped_and_their_tokens_discarded() -> None:
    worker = Ordered(NUM_FIRST)
    result = run(worker)
    assert (worker.num_calls, worker.num_cancelled) == (NUM_SAMPLES, NUM_SAMPLES - NUM_FIRST)
    (ended,) = [event for event in result.program.trace if event["event"] == "vote"]
    assert (ended["answers"], ended["num_samples"]) == (["1", "2"], NUM_FIRST)
    by_purpose = result.program.ledger.by_purpose
    assert (by_purpose[Purpose.CHAIN].decoded, by_purpose[Purpose.DISCARDED].decoded) == (10 + 20, 180)


def test_where_more_have_ended_the_shortest_vote() -> None:
    """As under a host that waits for all branches."""
    result = run(Ordered(NUM_SAMPLES), controller=vote(3))
    (event,) = [event for event in result.program.trace if event["event"] == "vote"]
    assert event["answers"] == ["1", "2", "3"]


def test_a_sample_that_fails_fails_the_vote() -> None:
    worker = Ordered(NUM_FIRST, fails=True)
    with pytest.raises(TaskError, match="the engine is gone"):
        run(worker)
    assert worker.num_cancelled == NUM_SAMPLES - NUM_FIRST


def test_with_as_many_as_there_are_all_vote() -> None:
    worker = Ordered(NUM_SAMPLES)
    result = run(worker, controller=vote(NUM_SAMPLES))
    assert worker.num_cancelled == 0
    assert result.exit_reason == "vote"


def test_an_engine_frees_the_samples_that_are_stopped() -> None:
    prompt = load_dataset("tinylm:held_out", num_samples=1)[0].prompt
    with HuggingFaceWorker("tinylm/target") as worker:
        result = run(worker, prompt)
        assert run(worker, prompt, NativeGenerationController({"max_tokens": 8})).outputs[0].text
    (ended,) = [event for event in result.program.trace if event["event"] == "vote"]
    assert ended["num_samples"] == NUM_FIRST
    by_purpose = result.program.ledger.by_purpose
    assert by_purpose[Purpose.CHAIN].decoded == sum(ended["num_decoded"])
    assert by_purpose[Purpose.DISCARDED].decoded > 0
