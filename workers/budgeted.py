"""A worker under a budget: so many calls and tokens at once, and the others wait in order of their priority."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from sortedcontainers import SortedList

from scaffolding_ext import require
from scaffolding_ext.program import record
from scaffolding_ext.protocol import StreamGenerationTask, Task, TaskStatus, Worker
from scaffolding_ext.tasks import notes_of
from scaffolding_ext.worker import WrappingWorker


class _Waiting(NamedTuple):
    """A task that waits: its priority, the tokens that it will hold, and what is set when it has its place."""

    priority: float
    num_tokens: int
    admitted: asyncio.Future[None]


class BudgetedWorker(WrappingWorker):
    """Protects another worker's memory: tasks beyond the budget wait, the lowest priority in `TaskNotes` first.

    Tasks of one priority are served in the order they came in. Nothing is admitted before the first that waits, so that
    a large task is not passed over for ever by small ones; one larger than `max_tokens` is served alone. A task that
    `patience` later ones have overtaken comes first, whatever its priority: each is served after at most so many others
    and those that it found waiting. The trace of a request says how long each of its tasks waited (`waited`).

    Streams are not served, since one that rests between its steps would hold memory that nobody counts: controllers
    take plain generation instead.

    Args:
        worker: Does the work, and is shut down with this one.
        max_calls: Tasks that it has at once.
        max_tokens: Tokens that its tasks may hold at once, read and still to be written; text counts a token a byte.
            None sets no limit.
        patience: Later tasks that may be served before one that waits; with 0, tasks are served as they come in.
        clock: Seconds from any origin, monotonic; for the trace.

    Raises:
        ConfigError: A limit is below 1, or `patience` below 0.

    Attributes:
        num_calls: Tasks that the worker has.
        most_calls: The most that it had at once.
        most_tokens: The most tokens that its tasks could hold at once.
    """

    def __init__(
        self,
        worker: Worker,
        max_calls: int = 4,
        max_tokens: int | None = None,
        *,
        patience: int = 32,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(worker)
        self.task_handlers.pop(StreamGenerationTask, None)
        self.max_calls = require.whole("max_calls", max_calls)
        self.max_tokens = None if max_tokens is None else require.whole("max_tokens", max_tokens)
        self.patience = require.whole("patience", patience, least=0)
        self.num_calls = self.most_calls = self.most_tokens = 0
        self._num_tokens = 0
        self._clock = clock
        self._waiting: dict[int, _Waiting] = {}  # by arrival, the earliest first
        self._by_priority = SortedList()  # (priority, arrival) of each
        self._arrivals = itertools.count()
        self._num_left = 0  # tasks that wait no more
        self._lock = threading.Lock()  # hosts have event loops of their own

    @property
    def num_waiting(self) -> int:
        """Tasks that wait."""
        return len(self._waiting)

    async def _hand_on(self, task: Any) -> TaskStatus | None:
        num_tokens = tokens_held(task)
        asked = self._clock()
        await self._wait(task, num_tokens)
        record("waited", priority=notes_of(task).priority, seconds_waited=round(self._clock() - asked, 6))
        try:
            return await super()._hand_on(task)
        finally:
            with self._lock:
                self._give_back(num_tokens)
                self._admit()

    async def _wait(self, task: Task, num_tokens: int) -> None:
        """Until the task has its place in the budget."""
        admitted = asyncio.get_running_loop().create_future()
        with self._lock:
            arrival = next(self._arrivals)
            waiting = _Waiting(notes_of(task).priority, num_tokens, admitted)
            self._waiting[arrival] = waiting
            self._by_priority.add((waiting.priority, arrival))
            self._admit()
        try:
            await admitted
        except asyncio.CancelledError:
            with self._lock:
                if arrival in self._waiting:
                    self._leave(arrival)
                else:  # its place was taken already
                    self._give_back(num_tokens)
                self._admit()
            raise

    def _admit(self) -> None:
        """Give places to those that wait, as long as the next of them fits."""
        while self._waiting and self._fits(self._waiting[arrival := self._next()].num_tokens):
            _, num_tokens, admitted = self._leave(arrival)
            self.num_calls += 1
            self._num_tokens += num_tokens
            self.most_calls = max(self.most_calls, self.num_calls)
            self.most_tokens = max(self.most_tokens, self._num_tokens)
            admitted.get_loop().call_soon_threadsafe(_let_go, admitted)

    def _next(self) -> int:
        """The arrival of the task to be served next: the earliest if it was overtaken too often, else by priority."""
        earliest = next(iter(self._waiting))
        num_overtaken = self._num_left - earliest  # all before it have left, and these came behind it
        _, first = self._by_priority[0]
        return earliest if num_overtaken >= self.patience else first

    def _leave(self, arrival: int) -> _Waiting:
        self._num_left += 1
        waiting = self._waiting.pop(arrival)
        self._by_priority.remove((waiting.priority, arrival))
        return waiting

    def _fits(self, num_tokens: int) -> bool:
        if self.num_calls >= self.max_calls:
            return False
        return not self.num_calls or self.max_tokens is None or self._num_tokens + num_tokens <= self.max_tokens

    def _give_back(self, num_tokens: int) -> None:
        self.num_calls -= 1
        self._num_tokens -= num_tokens


def tokens_held(task: Any) -> int:
    """Tokens that a task can come to hold: what it reads, and all that it may write; a byte of text counts as one."""
    ids = ("input_tokens", "continuation_tokens", "prefix_tokens")
    texts = ("input_str", "continuation_str")
    read = sum(len(getattr(task, name, None) or ()) for name in ids)
    if not read:
        read = sum(len((getattr(task, name, None) or "").encode()) for name in texts)
    suffixes = [*(getattr(task, "branches", None) or ()), *(getattr(task, "suffixes", None) or ())]
    written = (getattr(task, "max_tokens", None) or 0) * max(1, len(getattr(task, "suffixes", None) or ()))
    return read + sum(map(len, suffixes)) + written


def _let_go(admitted: asyncio.Future[None]) -> None:
    if not admitted.done():
        admitted.set_result(None)
