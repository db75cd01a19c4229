"""A worker under a budget of calls and tokens. Tasks beyond the budget wait in order of their priority."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from scaffolding_ext import require
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import StreamGenerationTask, TaskStatus, Worker
from scaffolding_ext.protocol.tasks import KeepKVTask
from scaffolding_ext.protocol.worker import WrappingWorker
from scaffolding_ext.registry import policies
from scaffolding_ext.request.program import current_program, priority_of, record
from scaffolding_ext.scheduling import Policy, WaitingLine


class _Waiting(NamedTuple):
    num_tokens: int
    admitted: asyncio.Future[None]


class BudgetedWorker(WrappingWorker):
    """Protects another worker's memory: tasks beyond the budget wait, the lowest priority first.

    The priority is the one in the task's `Meta`, or its program's under the host's policy. Tasks of equal priority are
    served in order of arrival. No task overtakes the first one that waits, so small tasks do not starve a large one. A
    task larger than `max_tokens` is served alone. The trace records each task's waiting time (`waited`).

    Streams are not served: between its steps a stream would hold uncounted memory. Controllers use plain generation
    instead.

    Args:
        worker: Does the work, and is shut down with this one.
        max_calls: Maximum number of simultaneous tasks.
        max_tokens: Maximum tokens that its tasks hold at once, read and still to be written; a byte of text counts as a
            token. None sets no limit.
        scheduling: Orders programs without a host's policy.
        patience: Later tasks that may be served before a waiting one; then it comes first at any priority.
        clock: Monotonic seconds, for the trace.

    Raises:
        ConfigError: A limit is below 1, `patience` is below 0, or `scheduling` is not a policy.
    """

    registries: ClassVar = {"scheduling": policies}

    def __init__(
        self,
        worker: Worker,
        max_calls: int = 4,
        max_tokens: int | None = None,
        *,
        scheduling: Policy | None = None,
        patience: int = 32,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(worker)
        self.unordered = None  # waiting tasks are ordered here
        if scheduling is not None and not isinstance(scheduling, Policy):
            raise ConfigError(f"is a {type(scheduling).__name__}; give a policy, such as Gang()", "scheduling")
        self.scheduling = scheduling
        self.task_handlers.pop(StreamGenerationTask, None)
        self.max_calls = require.whole("max_calls", max_calls)
        self.max_tokens = None if max_tokens is None else require.whole("max_tokens", max_tokens)
        self.patience = require.whole("patience", patience, least=0)
        self.num_calls = self.most_calls = self.most_tokens = 0
        self._num_tokens = 0
        self._clock = clock
        self._line: WaitingLine[_Waiting] = WaitingLine(self.patience)
        self._lock = threading.Lock()  # hosts have separate event loops

    @property
    def num_waiting(self) -> int:
        return len(self._line)

    async def _hand_on(self, task: Any) -> TaskStatus | None:
        if isinstance(task, KeepKVTask):  # it holds nothing
            return await super()._hand_on(task)
        num_tokens = tokens_held(task)
        asked = self._clock()
        program = current_program()
        if self.scheduling is not None and program is not None:
            self.scheduling.take_in(program)
        priority = priority_of(task)
        await self._wait(priority, num_tokens)
        record("waited", priority=priority, seconds_waited=round(self._clock() - asked, 6))
        try:
            return await super()._hand_on(task)
        finally:
            with self._lock:
                self._release(num_tokens)
                self._admit()

    async def _wait(self, priority: float, num_tokens: int) -> None:
        waiting = _Waiting(num_tokens, asyncio.get_running_loop().create_future())
        with self._lock:
            self._line.add(waiting, priority)
            self._admit()
        try:
            await waiting.admitted
        except asyncio.CancelledError:
            with self._lock:
                if waiting in self._line:
                    self._line.remove(waiting)
                else:  # already admitted
                    self._release(num_tokens)
                self._admit()
            raise

    def _admit(self) -> None:
        while self._line and self._fits((first := self._line[0]).num_tokens):
            self._line.remove(first)
            self.num_calls += 1
            self._num_tokens += first.num_tokens
            self.most_calls = max(self.most_calls, self.num_calls)
            self.most_tokens = max(self.most_tokens, self._num_tokens)
            first.admitted.get_loop().call_soon_threadsafe(_begin, first.admitted)

    def _fits(self, num_tokens: int) -> bool:
        if self.num_calls >= self.max_calls:
            return False
        return not self.num_calls or self.max_tokens is None or self._num_tokens + num_tokens <= self.max_tokens

    def _release(self, num_tokens: int) -> None:
        self.num_calls -= 1
        self._num_tokens -= num_tokens


def tokens_held(task: Any) -> int:
    """Upper bound of a task's tokens: read, and possibly written; a byte of text counts as one."""
    ids = ("input_tokens", "continuation_tokens", "prefix_tokens")
    texts = ("input_str", "continuation_str")
    read = sum(len(getattr(task, name, None) or ()) for name in ids)
    if not read:
        read = sum(len((getattr(task, name, None) or "").encode()) for name in texts)
    suffixes = [*(getattr(task, "branches", None) or ()), *(getattr(task, "suffixes", None) or ())]
    written = (getattr(task, "max_tokens", None) or 0) * max(1, len(getattr(task, "suffixes", None) or ()))
    return read + sum(map(len, suffixes)) + written


def _begin(admitted: asyncio.Future[None]) -> None:
    if not admitted.done():
        admitted.set_result(None)
