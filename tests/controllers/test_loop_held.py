"""No controller holds the host's loop for long. No test can assert milliseconds, so it counts calls a step."""

from __future__ import annotations

from asyncio import events
from collections.abc import Callable
from typing import Any

import pytest

from tests.controllers import loop_held

NUM_REQUESTS = 64
CHUNK_SIZE = 1024  # with 64 tokens between two looks, counting takes minutes; a step is as long
# Log-probabilities of 8,192 tokens a branch, and 64 samples a vote, take long to count; more requests change no step.
FEWER_REQUESTS = {
    "vote": 8,
    "vote by confidence": 1,
    "deepconf": 1,
    "branching": 1,
    "search": 4,
    "draft and target": 8,
    "vote of chains": 16,
}
_STEP = events.Handle._run.__code__  # type: ignore[attr-defined]  # where every callback of a loop begins


class LongestStep:
    """The most functions, of Python and of C, that one step of a loop calls: while it runs, nothing else on it does.

    Attributes:
        num: Calls of the longest step.
    """

    def __init__(self, call_count: Any) -> None:
        self.num = 0
        self._counted = call_count
        self._count = call_count._count
        call_count._count = self._see

    def _see(self, frame: Any, event: str, argument: object) -> None:
        if event == "call" and frame.f_code is _STEP:
            self.num, self._counted.num = max(self.num, self._counted.num), 0
        self._count(frame, event, argument)


@pytest.mark.filterwarnings("ignore:the take-over rule. coverage 'conditional'")
@pytest.mark.parametrize("name", loop_held.CONTROLLERS)
def test_a_step(name: str, call_count: Any, within_ceiling: Callable[[str, float], None]) -> None:
    longest = LongestStep(call_count)
    loop_held.run(loop_held.CONTROLLERS[name](CHUNK_SIZE), FEWER_REQUESTS.get(name, NUM_REQUESTS), call_count.on_loop)
    assert longest.num > 0
    within_ceiling("controllers, calls a step of the loop", longest.num)
