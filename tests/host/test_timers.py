"""Cost of a waiting request on the host's loop, in counts: one timer a limit, and no turns."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.testing import Gate, ScriptedWorker

HOUR = 3600.0
NUM_REQUESTS, NUM_SAMPLES, NUM_TURNS = 5, 4, 50


class Counts:
    """What is planned on event loops.

    Attributes:
        timers: All that were set, each with its loop.
        soon: The loop of each function that was planned for a next turn.
    """

    def __init__(self) -> None:
        self.timers: list[tuple[Any, asyncio.TimerHandle]] = []
        self.soon: list[Any] = []

    def num_pending(self, loop: asyncio.AbstractEventLoop) -> int:
        """Timers that still wait for their time."""
        return sum(own is loop and not timer.cancelled() for own, timer in self.timers)

    def num_planned(self, loop: asyncio.AbstractEventLoop) -> tuple[int, int]:
        """Functions that were planned for a next turn, and timers that were set."""
        return self.soon.count(loop), sum(own is loop for own, _ in self.timers)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    found = Counts()

    def counted(name: str) -> None:
        planned = getattr(asyncio.BaseEventLoop, name)

        def plan(loop: Any, *args: Any, **kwargs: Any) -> Any:
            handle = planned(loop, *args, **kwargs)
            if name == "call_at":
                found.timers.append((loop, handle))
            else:
                found.soon.append(loop)
            return handle

        monkeypatch.setattr(asyncio.BaseEventLoop, name, plan)

    for name in ("call_at", "call_soon", "call_soon_threadsafe"):
        counted(name)
    return found


def turns(llm: ScaffoldingLlm, num: int) -> None:
    """Let the loop go round so many times, one after another."""

    async def turn() -> None:
        pass

    for _ in range(num):
        asyncio.run_coroutine_threadsafe(turn(), llm.loop).result(HOUR)


def waiting_votes(llm: ScaffoldingLlm, gate: Gate, **limits: Any) -> list[Any]:
    """Votes all of whose samples are held at the worker."""
    results = [llm.generate_async(f"question {number}", **limits) for number in range(NUM_REQUESTS)]
    gate.wait_for(NUM_REQUESTS * NUM_SAMPLES)
    turns(llm, NUM_TURNS)
    return results


def votes_at(gate: Gate) -> ScaffoldingLlm:
    controller = MajorityVoteController(NativeGenerationController(), NUM_SAMPLES, allocation=None)
    worker = ScriptedWorker("so \\boxed{7}", before=gate)
    return ScaffoldingLlm(controller, {"generation": worker}, max_parallel_requests=NUM_REQUESTS)


@pytest.mark.parametrize(
    ("limits", "num_timers"),
    [({}, 0), ({"timeout": HOUR}, 1), ({"timeout": HOUR, "deadline": HOUR / 2}, 2)],
    ids=["without limits", "time-out", "time-out and deadline"],
)
def test_a_request_has_one_timer_a_limit(counts: Counts, limits: dict[str, float], num_timers: int) -> None:
    gate = Gate()
    with votes_at(gate) as llm:
        results = waiting_votes(llm, gate, **limits)
        assert counts.num_pending(llm.loop) == num_timers * NUM_REQUESTS
        gate.open()
        assert [each.result().outputs[0].answer for each in results] == ["7"] * NUM_REQUESTS
        turns(llm, NUM_TURNS)
        assert counts.num_pending(llm.loop) == 0


def test_requests_that_wait_take_no_turns_of_the_loop(counts: Counts) -> None:
    def planned_in_turns() -> tuple[int, int]:
        before = counts.num_planned(llm.loop)
        turns(llm, NUM_TURNS)
        after = counts.num_planned(llm.loop)
        return after[0] - before[0], after[1] - before[1]

    gate = Gate()
    with votes_at(gate) as llm:
        turns(llm, NUM_TURNS)
        idle = planned_in_turns()
        results = waiting_votes(llm, gate, timeout=HOUR, deadline=HOUR / 2)
        assert planned_in_turns() == idle
        assert idle[1] == 0
        gate.open()
        assert all(each.result().outputs for each in results)
