"""Votes with a deadline: their rounds widen where time is short, and they answer in time with what they have."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from scaffolding_ext import MajorityVoteController, ScaffoldingLlm
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.sample_times import SampleTimes
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.controllers.vote.deadline import round_in_time
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


def vote(num_samples: int, allocation: Any = None, sample_seconds: float | None = None) -> MajorityVoteController:
    native = NativeGenerationController({"temperature": 0.7, "max_tokens": 1000})
    made = MajorityVoteController(native, num_samples, allocation=allocation)
    made.memory.sample_times.add([] if sample_seconds is None else [sample_seconds])
    return made


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


def test_rounds_are_the_rule_s_own_where_time_is_long_or_nobody_knows_it() -> None:
    for controller in (vote(6, TwoByTwo(), sample_seconds=LONG / 100), vote(6, TwoByTwo())):
        result = run(Endless(range(1, 7)), controller, deadline=LONG)
        assert [(event["num_samples"], event["wide"]) for event in events(result, "round_in_time")] == [(2, False)] * 3
        assert result.exit_reason == "vote"


def test_a_wide_round_ends_when_those_that_have_ended_settle_the_vote() -> None:
    worker = Endless(range(1, 3), "7")
    result = run(worker, vote(6, TwoByTwo(), sample_seconds=LONG), deadline=LONG)
    assert [(event["num_samples"], event["wide"]) for event in events(result, "round_in_time")] == [(4, True)]
    assert (result.outputs[0].answer, result.exit_reason) == ("7", "certain")
    assert (worker.num_calls, worker.num_cancelled) == (4, 2)


def test_a_vote_draws_no_more_samples_than_it_may_those_that_were_stopped_included() -> None:
    worker = Endless(range(1, 3), over_at=4)
    result = run(worker, vote(4, TwoByTwo(), sample_seconds=LONG), deadline=LONG)
    assert (worker.num_calls, result.exit_reason) == (4, "deadline")


def test_a_time_out_is_no_deadline() -> None:
    result = run(Endless(range(1, 7)), vote(6, TwoByTwo(), sample_seconds=LONG))
    assert events(result, "round_in_time") == []
    assert result.exit_reason == "vote"


def test_the_last_of_several_is_expected_as_the_mean_maximum_of_the_times_seen() -> None:
    seen = [1.0, 2.0, 4.0]
    times = SampleTimes()
    assert times.until_last(3, []) is None
    times.add(seen)
    drawn = np.random.default_rng(0).choice(seen, (40_000, 3)).max(axis=1)
    assert times.until_last(3, []) == pytest.approx(drawn.mean(), rel=0.01)
    assert times.until_last(1, []) == pytest.approx(7 / 3)
    assert times.until_last(1, [7 / 3 * 4]) == pytest.approx(7 / 3 * 2.5)  # its own count beside one of the mean


def test_what_is_left_decides_on_the_width() -> None:
    times = SampleTimes(10.0)
    assert round_in_time(3, 16, 20.0, times, []) == (3, False)
    assert round_in_time(3, 16, 19.9, times, []) == (6, True)
    assert round_in_time(3, 4, 19.9, times, []) == (4, True)
    assert round_in_time(3, 16, 19.9, times, [], widening=4) == (12, True)
