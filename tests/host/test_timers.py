"""A request that waits takes no turns of the host's loop, and one timer a limit."""

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


def test_requests_that_wait_take_no_turns_of_the_loop_and_one_timer_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[tuple[Any, Any]] = []  # the loop and the handle of each function that was planned for a turn

    def counted(name: str) -> None:
        plan = getattr(asyncio.BaseEventLoop, name)

        def keeping(loop: Any, *args: Any, **kwargs: Any) -> Any:
            handle = plan(loop, *args, **kwargs)
            planned.append((loop, handle))
            return handle

        monkeypatch.setattr(asyncio.BaseEventLoop, name, keeping)

    for name in ("call_at", "call_soon", "call_soon_threadsafe"):
        counted(name)

    def planned_on_the_host() -> list[Any]:
        return [handle for loop, handle in planned if loop is llm.loop]

    def pending() -> list[Any]:
        timers = [handle for handle in planned_on_the_host() if isinstance(handle, asyncio.TimerHandle)]
        return [timer for timer in timers if not timer.cancelled()]

    def num_planned() -> int:
        """Functions planned while the loop goes round, one turn after another."""

        async def turn() -> None:
            pass

        before = len(planned_on_the_host())
        for _ in range(NUM_TURNS):
            asyncio.run_coroutine_threadsafe(turn(), llm.loop).result(HOUR)
        return len(planned_on_the_host()) - before

    gate = Gate()
    controller = MajorityVoteController(NativeGenerationController(), NUM_SAMPLES, allocation=None)
    worker = ScriptedWorker("so \\boxed{7}", before=gate)
    with ScaffoldingLlm(controller, {"generation": worker}, max_parallel_requests=NUM_REQUESTS) as llm:
        num_planned()
        idle = num_planned()
        limits = {"timeout": HOUR, "deadline": HOUR / 2}
        results = [llm.generate_async(f"question {number}", **limits) for number in range(NUM_REQUESTS)]
        gate.wait_for(NUM_REQUESTS * NUM_SAMPLES)
        num_planned()
        assert num_planned() == idle
        assert len(pending()) == 2 * NUM_REQUESTS  # one a limit
        gate.open()
        assert all(each.result().outputs for each in results)
        num_planned()  # requests end behind their results
        assert not pending()  # none still waits for its time
