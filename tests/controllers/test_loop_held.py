"""No vote holds the host's loop longer for more samples, whatever it compares.

A step is one callback of the loop: while it runs, nothing else on the loop does. It is measured in function calls.
"""

from __future__ import annotations

import itertools
from asyncio import events
from collections.abc import Callable
from typing import Any

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.testing import ScriptedWorker

_STEP = events.Handle._run.__code__  # type: ignore[attr-defined]  # where every callback of a loop begins
# None equals another of its kind, and their text leaves most pairs open: every pair is looked at part by part.
HOSTILE: tuple[Callable[[int], str], ...] = (
    lambda n: "(" + ",".join(f"x^{part}{n}" for part in range(40)) + ")",
    lambda n: r"\cup ".join(f"({part},{part + n}x)" for part in range(40)),
    lambda n: ",".join(rf"\pm{n + part}" for part in range(40)),
    lambda n: "9" * 200 + f"{n}/" + "7" * 200,
)


def longest_step(count: Any, num_samples: int) -> int:
    """Calls of the longest step of a vote whose answers are all different and slow to compare."""
    longest, count_one, numbers = 0, count._count, itertools.count()

    def see(frame: Any, event: str, argument: object) -> None:
        nonlocal longest
        if event == "call" and frame.f_code is _STEP:
            longest, count.num = max(longest, count.num), 0
        count_one(frame, event, argument)

    def respond(task: GenerationTask) -> str:
        number = next(numbers)
        return rf"\boxed{{{HOSTILE[number % len(HOSTILE)](number)[:480]}}}"

    count._count = see
    vote = MajorityVoteController(NativeGenerationController({"temperature": 0.7}), num_samples, allocation=None)
    with ScaffoldingLlm(vote, {"generation": ScriptedWorker(respond)}, seed=0) as llm, count.on_loop(llm.loop):
        llm.generate("question")
    count._count = count_one
    return longest


def test_a_step_of_a_vote_grows_at_most_with_its_samples(call_count: Any) -> None:
    """Comparing all pairs in one step would take 16 times as long."""
    longest_step(call_count, 64)  # forms of answers are kept from here on
    few, four_times = longest_step(call_count, 16), longest_step(call_count, 64)
    assert 0 < four_times < 6 * few
