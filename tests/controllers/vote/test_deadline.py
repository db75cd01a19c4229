"""Votes with a deadline: they answer in time with what they have."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import pytest

from scaffolding_ext import MajorityVoteController, ScaffoldingLlm
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.protocol import GenerationTask, TaskStatus
from scaffolding_ext.protocol.meta import Purpose, TokenCounts, note
from scaffolding_ext.protocol.worker import BaseWorker
from scaffolding_ext.request.program import current_program

LONG = 600.0


@dataclass(frozen=True, kw_only=True)
class TwoByTwo(AllocationRule):
    """Draws two samples at a time until two are equal."""

    def _num_more(self, votes: Votes) -> int:
        return 0 if len(set(votes.classes)) < len(votes.classes) else 2


class Endless(BaseWorker):
    """Ends some of its calls at once, each with an answer of its own or one for all; the others never.

    Args:
        over_at: With this call the deadline is over: the clocks of the request and of its host's loop move past it.
        late: This call ends a moment after that.
    """

    tasks = (GenerationTask,)

    def __init__(self, ending: range, answers: str = "", over_at: int = 0, late: int = 0) -> None:
        super().__init__()
        self.ending, self.answers, self.over_at, self.late = ending, answers, over_at, late
        self.num_calls = self.num_cancelled = 0
        self.seconds_gone = 0.0
        self.is_over = asyncio.Event()

    def clock(self) -> float:
        return time.monotonic() + self.seconds_gone

    async def run_task(self, task: Any) -> TaskStatus:
        self.num_calls += 1
        number, loop, program = self.num_calls, asyncio.get_running_loop(), current_program()
        assert program is not None
        program.lifetime.clock = loop.time = self.clock  # type: ignore[method-assign]
        note(task, counts=TokenCounts(10, 1, 0))
        if number == self.over_at:
            self.seconds_gone = LONG
            loop.call_later(0.05, self.is_over.set)
        if number == self.late:
            await self.is_over.wait()
        elif number not in self.ending:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.num_cancelled += 1
                raise
        task.output_str, task.output_tokens = f"so \\boxed{{{self.answers or number}}}", [1] * 10
        return TaskStatus.SUCCESS


def run(worker: Any, controller: MajorityVoteController, **when: float) -> Any:
    with ScaffoldingLlm(controller, {"generation": worker}, seed=1) as llm:
        return llm.generate("what?", timeout=LONG + 60.0, **when)


def vote(num_samples: int, allocation: Any = None, **how: Any) -> MajorityVoteController:
    native = NativeGenerationController({"temperature": 0.7, "max_tokens": 1000})
    return MajorityVoteController(native, num_samples, allocation=allocation, **how)


def events(result: Any, name: str) -> list[dict[str, Any]]:
    return [event for event in result.program.trace if event["event"] == name]


def test_at_the_deadline_those_vote_that_have_ended() -> None:
    worker = Endless(range(1, 3), "7", over_at=6)
    result = run(worker, vote(6), deadline=LONG)
    assert (result.outputs[0].answer, result.exit_reason) == ("7", "deadline")
    assert (worker.num_calls, worker.num_cancelled) == (6, 4)
    assert events(result, "vote")[0]["num_samples"] == 2
    by_purpose = result.program.ledger.by_purpose
    assert (by_purpose[Purpose.CHAIN].decoded, by_purpose[Purpose.DISCARDED].decoded) == (20, 40)


def test_where_none_has_ended_the_first_one_answers_late() -> None:
    worker = Endless(range(0), "7", over_at=3, late=2)
    result = run(worker, vote(3), deadline=LONG)
    assert (result.outputs[0].answer, result.exit_reason) == ("7", "deadline")
    assert result.program.lifetime.elapsed() > LONG
    assert worker.num_cancelled == 2


@pytest.mark.parametrize("order", ["index", "arrival"])
def test_of_a_cut_flight_those_vote_that_have_ended(order: Any) -> None:
    worker = Endless(range(1, 3), "7", over_at=6)
    result = run(worker, vote(8, in_flight=4, order=order), deadline=LONG)
    assert (result.outputs[0].answer, result.exit_reason) == ("7", "deadline")
    assert (worker.num_calls, worker.num_cancelled) == (6, 4)


def test_by_index_a_cut_flight_counts_those_behind_a_running_one() -> None:
    worker = Endless(range(2, 5), "7", over_at=5)  # the first never ends
    result = run(worker, vote(8, in_flight=4, order="index"), deadline=LONG)
    assert (result.outputs[0].answer, result.exit_reason) == ("7", "deadline")


class FailsLate(BaseWorker):
    """Ends its second call; the first fails behind it, with the deadline over. Further calls never end."""

    tasks = (GenerationTask,)

    def __init__(self) -> None:
        super().__init__()
        self.num_calls, self.has_ended = 0, asyncio.Event()

    async def run_task(self, task: Any) -> TaskStatus:
        self.num_calls += 1
        if self.num_calls == 1:
            await self.has_ended.wait()
            program = current_program()
            assert program is not None
            program.lifetime.clock = lambda: time.monotonic() + LONG
            raise RuntimeError("broke")
        if self.num_calls > 2:
            await asyncio.Event().wait()
        task.output_str, task.output_tokens = "so \\boxed{7}", [1] * 10
        self.has_ended.set()
        return TaskStatus.SUCCESS


@pytest.mark.parametrize("how", [{}, {"in_flight": 3, "order": "index"}, {"in_flight": 3, "order": "arrival"}])
def test_a_sample_that_fails_behind_the_deadline_costs_no_answer(how: dict[str, Any]) -> None:
    result = run(FailsLate(), vote(4, **how), deadline=LONG)
    assert (result.outputs[0].answer, result.exit_reason) == ("7", "deadline")
    assert events(result, "vote")[0]["num_samples"] == 1


def test_a_far_deadline_changes_nothing() -> None:
    timed, plain = (run(Endless(range(1, 7)), vote(6, TwoByTwo()), **when) for when in ({"deadline": LONG}, {}))
    assert events(timed, "vote")[0]["answers"] == events(plain, "vote")[0]["answers"]
    assert (timed.exit_reason, plain.exit_reason) == ("vote", "vote")


def test_a_time_out_is_no_deadline() -> None:
    result = run(Endless(range(1, 7)), vote(6, TwoByTwo()))
    assert result.exit_reason == "vote"
