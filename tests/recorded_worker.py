"""A worker that plays recorded chains at one token a tick of a clock of its own: no model runs, and nobody waits."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from scaffolding_ext.prompts.families import FAMILIES
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, TaskStatus
from scaffolding_ext.protocol.meta import TokenCounts, meta_of, note
from scaffolding_ext.protocol.standins import TaskHandler
from scaffolding_ext.protocol.worker import BaseWorker

_TURNS = 12  # of the event loop, until whoever can go on without the clock has done so


class RecordedChain(NamedTuple):
    answer: str
    num_tokens: int

    @property
    def text(self) -> str:
        """The chain, a character a token; the answer stands at its end."""
        return f" \\boxed{{{self.answer}}}".rjust(self.num_tokens, "x")[-self.num_tokens :]


class Characters:
    """A prompting whose tokens are characters."""

    family = FAMILIES["instruct"]

    def apply(self, task: GenerationTask, history: Any = (), raw: bool = False) -> None:
        task.input_tokens = self.encode(task.input_str or "")

    def is_open(self, prompt: str, family: Any = None) -> None:
        return None

    def family_behind(self, prompt: str) -> Any:
        return self.family

    def encode(self, text: str) -> list[int]:
        return list(map(ord, text))

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))


class TickClock:
    """Time that goes on when everybody waits for it."""

    def __init__(self) -> None:
        self.now = 0
        self._due: list[tuple[int, int, asyncio.Future[None]]] = []
        self._num_waits = 0
        self._ticking: asyncio.Task[None] | None = None

    async def until(self, when: int) -> None:
        if when <= self.now:
            return
        future = asyncio.get_running_loop().create_future()
        self._num_waits += 1
        heapq.heappush(self._due, (when, self._num_waits, future))
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.create_task(self._tick())
        await future

    async def _tick(self) -> None:
        while self._due:
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            while self._due and self._due[0][2].done():  # cancelled
                heapq.heappop(self._due)
            self.now = self._due[0][0] if self._due else self.now
            while self._due and self._due[0][0] <= self.now:
                future = heapq.heappop(self._due)[2]
                if not future.done():
                    future.set_result(None)


class RecordedWorker(BaseWorker):
    """Plays the chains of one question; a sample's number in its vote says which one."""

    model = None

    def __init__(self) -> None:
        super().__init__()
        self.clock = TickClock()
        self._chains: Sequence[RecordedChain] = ()
        self._began: dict[int, tuple[int, Any, str]] = {}

    def begin(self, chains: Sequence[RecordedChain]) -> None:
        """Begin another question."""
        self._chains = chains
        self._began.clear()

    async def _run(self, task: GenerationTask) -> TaskStatus:
        is_stream = isinstance(task, StreamGenerationTask)
        known = self._began.get(id(task))
        if known is None:
            known = self._began[id(task)] = self.clock.now, task, self._chains[meta_of(task).draw[-1]].text
        began, _, text = known
        wanted = len(text)
        if isinstance(task, StreamGenerationTask):
            wanted = min(wanted, len(task.output_tokens or ()) + (task.streaming_step or 1))
        try:
            if not (is_stream and task.cancel_flag):
                await self.clock.until(began + wanted)
        finally:
            written = text[: self.clock.now - began]
            task.output_str, task.output_tokens = written, list(map(ord, written))
            note(task, counts=TokenCounts(len(written), 1, 0))
        if isinstance(task, StreamGenerationTask):
            task.end_flag = task.cancel_flag or len(written) == len(text)
        return TaskStatus.SUCCESS

    task_handlers: ClassVar[dict[Any, TaskHandler]] = {GenerationTask: _run, StreamGenerationTask: _run}
