"""A worker under a budget: so many calls and tokens at once, and the others wait in order of their priority."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.program import record
from scaffolding_ext.protocol import StreamGenerationTask, Task, TaskStatus, Worker
from scaffolding_ext.tasks import priority_of


class BudgetedWorker(Worker):
    """Protects another worker's memory: tasks beyond the budget wait, the lowest `priority_of` first.

    Tasks of one priority are served in the order they came in. Nothing overtakes the first that waits, so that a large
    task is not passed over for ever by small ones; one larger than `max_tokens` is served alone. The trace of a request
    says how long each of its tasks waited (`waited`).

    Streams are not served, since one that rests between its steps would hold memory that nobody counts: controllers
    take plain generation instead.

    Args:
        worker: Does the work, and is shut down with this one.
        max_calls: Tasks that it has at once.
        max_tokens: Tokens that its tasks may hold at once, read and still to be written; text counts a token a byte.
            None sets no limit.
        clock: Seconds from any origin, monotonic; for the trace.

    Raises:
        ConfigError: An argument is below 1.

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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for key, value in (("max_calls", max_calls), ("max_tokens", max_tokens)):
            if value is not None and value < 1:
                raise ConfigError(f"is {value}; it must be at least 1", key)
        self.worker = worker
        self.max_calls, self.max_tokens = max_calls, max_tokens
        self.model = getattr(worker, "model", None)
        self.max_seq_len = getattr(worker, "max_seq_len", None)
        self.tokenizer_fingerprint = getattr(worker, "tokenizer_fingerprint", None)
        self.chat_template = getattr(worker, "chat_template", None)
        kinds = set(worker.task_handlers) - {StreamGenerationTask}
        self.task_handlers = dict.fromkeys(kinds, BudgetedWorker._serve)  # type: ignore[misc]  # read from the instance
        self.num_calls = self.most_calls = self.most_tokens = 0
        self._num_tokens = 0
        self._clock = clock
        self._waiting: list[tuple[float, int, int, asyncio.Future[None]]] = []
        self._arrivals = itertools.count()
        self._lock = threading.Lock()  # hosts have event loops of their own

    @property
    def num_waiting(self) -> int:
        """Tasks that wait."""
        return len(self._waiting)

    async def on_scope_end(self, scope_id: str) -> None:
        """Pass it on."""
        await self.worker.on_scope_end(scope_id)

    def shutdown(self) -> None:
        """Shut the worker down; what waits fails with it, once its turn comes."""
        self.worker.shutdown()

    async def _serve(self, task: Any) -> TaskStatus | None:
        num_tokens = tokens_held(task)
        asked = self._clock()
        await self._wait(task, num_tokens)
        record("waited", priority=priority_of(task), seconds_waited=round(self._clock() - asked, 6))
        try:
            return await self.worker.run_task(task)
        finally:
            with self._lock:
                self._give_back(num_tokens)
                self._admit()

    async def _wait(self, task: Task, num_tokens: int) -> None:
        """Until the task has its place in the budget."""
        admitted = asyncio.get_running_loop().create_future()
        with self._lock:
            heapq.heappush(self._waiting, (priority_of(task), next(self._arrivals), num_tokens, admitted))
            self._admit()
        try:
            await admitted
        except asyncio.CancelledError:
            with self._lock:
                if any(entry[3] is admitted for entry in self._waiting):
                    self._waiting = [entry for entry in self._waiting if entry[3] is not admitted]
                    heapq.heapify(self._waiting)
                else:  # its place was taken already
                    self._give_back(num_tokens)
                self._admit()
            raise

    def _admit(self) -> None:
        """Give places to those that wait, as long as the first of them fits."""
        while self._waiting and self._fits(self._waiting[0][2]):
            _, _, num_tokens, admitted = heapq.heappop(self._waiting)
            self.num_calls += 1
            self._num_tokens += num_tokens
            self.most_calls = max(self.most_calls, self.num_calls)
            self.most_tokens = max(self.most_tokens, self._num_tokens)
            admitted.get_loop().call_soon_threadsafe(_let_go, admitted)

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
