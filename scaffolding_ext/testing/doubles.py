"""Public test doubles: a worker that answers from a plain function, a gate, and a manually advanced clock.

`scaffolding_ext.testing.controller_contract` tests a controller against them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from scaffolding_ext.answers.stop_strings import StopStrings, stop_strings
from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.protocol import GenerationTask, ScaffoldingOutput, StreamGenerationTask, Task, TaskStatus
from scaffolding_ext.protocol.meta import TokenCounts, note
from scaffolding_ext.protocol.standins import TaskHandler
from scaffolding_ext.protocol.task_results import TokenLogprob
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.protocol.worker import BaseWorker

Reply = str | Sequence[float] | Exception
"""A scripted answer: text (each character is a token), token ids, a score's log-probabilities, or an error to raise."""


class _ScriptedGeneration(NamedTuple):
    """The full reply to a generation task; a stop string is among its tokens but not in its text."""

    token_ids: list[int]
    finish_reason: str
    stops: StopStrings

    def text(self, num_tokens: int) -> str:
        text = "".join(map(chr, self.token_ids[:num_tokens]))
        return self.stops.cut(text) if num_tokens >= len(self.token_ids) else self.stops.certain(text)


class ScriptedWorker(BaseWorker):
    """Answers every task from a function; no model, no randomness, no waiting.

    One token is one character, its id the character's code point: `"ab"` and `[97, 98]` are the same reply. Generation
    ends at the task's stop strings, and at `max_tokens` with finish reason `"length"`; other sampling fields are left
    to the function. A streaming task calls the function once, at its first step. A task without a prompt, or with a
    budget below 1, is refused.

    Args:
        respond: Called with a task; returns its `Reply`, or raises. A plain string answers every task.
        before: Awaited with the task before each call, including each step of a stream.
        metered: If False, no token counts are recorded in the tasks.
        logprobs: Called with a task and the index of one of its new tokens; returns natural-log probabilities by token
            id. None returns no log-probabilities.

    Attributes:
        model: None: there is no model, so prompts arrive unchanged.
        tasks: All tasks in order of arrival, a streaming task once.
    """

    model = None

    def __init__(
        self,
        respond: Callable[[Any], Reply] | str,
        *,
        before: Callable[[Any], Awaitable[object]] | None = None,
        metered: bool = True,
        logprobs: Callable[[Any, int], Mapping[int, float]] | None = None,
    ) -> None:
        self.tasks: list[Task] = []
        self._known: set[int] = set()
        self._respond = (lambda task: respond) if isinstance(respond, str) else respond
        self._before = before
        self._metered = metered
        self._logprobs = logprobs

    async def _arrive(self, task: Task) -> None:
        if id(task) not in self._known:  # ids stay unique, since `tasks` keeps the objects alive
            self._known.add(id(task))
            self.tasks.append(task)
        if self._before is not None:
            await self._before(task)

    async def _generate(self, task: GenerationTask) -> TaskStatus:
        _check(task)
        await self._arrive(task)
        generation = self._script(task)
        num_tokens = len(generation.token_ids)
        if task.streaming_output_flag:
            for end in range(1, num_tokens):
                task.streaming_output_list.append(ScaffoldingOutput(generation.text(end), generation.token_ids[:end]))
        self._write(task, generation, num_tokens)
        return TaskStatus.SUCCESS

    async def _stream(self, task: StreamGenerationTask) -> TaskStatus:
        _check(task)
        await self._arrive(task)
        if task.request_handle is None:
            task.request_handle = self._script(task)
        generation: _ScriptedGeneration = task.request_handle
        position = len(task.output_tokens or ())
        if task.cancel_flag:
            self._write(task, generation, position)
            _set_finish_reason(task, "cancelled")
            task.end_flag = True
            return TaskStatus.SUCCESS
        self._write(task, generation, position + (task.streaming_step or 1))
        return TaskStatus.SUCCESS

    async def _score(self, task: ScoreTask) -> TaskStatus:
        await self._arrive(task)
        reply = self._reply(task)
        if isinstance(reply, str):
            raise TypeError(f"the reply to a ScoreTask is {reply!r}; give a list of log-probabilities")
        task.logprobs = list(reply)
        self._meter(task, TokenCounts(0, _num_tokens(task) + len(reply)))
        return TaskStatus.SUCCESS

    def _reply(self, task: Task) -> str | Sequence[float]:
        reply = self._respond(task)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _script(self, task: GenerationTask) -> _ScriptedGeneration:
        reply = self._reply(task)
        token_ids = [ord(token) if isinstance(token, str) else int(token) for token in reply]
        stops = StopStrings(stop_strings(task.stop))
        kept = token_ids[: task.max_tokens]
        matcher = stops.matcher()
        num_kept = next((number for number, token in enumerate(kept, 1) if stops and matcher.feed(chr(token))), None)
        if num_kept is not None:
            return _ScriptedGeneration(kept[:num_kept], "stop", stops)
        return _ScriptedGeneration(kept, "length" if len(kept) < len(token_ids) else "stop", stops)

    def _write(self, task: GenerationTask, generation: _ScriptedGeneration, num_tokens: int) -> None:
        """Write the first tokens of a generation to its task."""
        task.output_str, task.output_tokens = generation.text(num_tokens), generation.token_ids[:num_tokens]
        if self._logprobs is not None and task.num_logprobs:
            steps = (self._logprobs(task, index) for index in range(len(task.output_tokens)))
            task.logprobs = [{token: TokenLogprob(value) for token, value in step.items()} for step in steps]
        ended = len(task.output_tokens) == len(generation.token_ids)
        _set_finish_reason(task, generation.finish_reason if ended else None)
        if isinstance(task, StreamGenerationTask):
            task.end_flag = ended
        if task.streaming_output_flag:
            task.streaming_output_list.append(ScaffoldingOutput(task.output_str, task.output_tokens))
        self._meter(task, TokenCounts(len(task.output_tokens), _num_tokens(task)))

    def _meter(self, task: Task, counts: TokenCounts) -> None:
        if self._metered:
            note(task, counts=counts)

    task_handlers: ClassVar[dict[type[Any], TaskHandler]] = {
        GenerationTask: _generate,
        StreamGenerationTask: _stream,
        ScoreTask: _score,
    }


class Gate:
    """Holds tasks at a worker until it is opened, from any thread; use it as a `ScriptedWorker`'s `before`.

    Args:
        timeout: Seconds to wait for a task before raising, so a test fails instead of hanging.
    """

    def __init__(self, timeout: float = 30.0) -> None:
        self._timeout = timeout
        self._arrived = threading.Semaphore(0)
        self._cancelled = threading.Semaphore(0)
        self._is_open = threading.Event()
        self._held: list[asyncio.Future[None]] = []

    async def __call__(self, task: Task) -> None:
        future = asyncio.get_running_loop().create_future()
        self._held.append(future)
        self._arrived.release()
        if self._is_open.is_set():
            return
        try:
            await future
        except asyncio.CancelledError:
            self._cancelled.release()
            raise

    def wait_for(self, num_tasks: int = 1) -> None:
        """Wait until that many more tasks have arrived, held or let through.

        Raises:
            TimeoutError: They did not arrive in time.
        """
        self._wait(self._arrived, num_tasks, "arrived at")

    def wait_for_cancelled(self, num_tasks: int = 1) -> None:
        """Wait until that many more held tasks have been cancelled.

        Raises:
            TimeoutError: They were not cancelled in time.
        """
        self._wait(self._cancelled, num_tasks, "were cancelled in")

    def open(self) -> None:
        """Release all tasks, including later ones."""
        self._is_open.set()
        for future in self._held:
            future.get_loop().call_soon_threadsafe(_release, future)

    def _wait(self, passed: threading.Semaphore, num_tasks: int, what: str) -> None:
        for number in range(num_tasks):
            if not passed.acquire(timeout=self._timeout):
                raise TimeoutError(f"{number} of {num_tasks} tasks {what} the gate in {self._timeout} s")


class FakeClock:
    """A test clock: call it for the time in seconds, move it with `advance`."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Advance the time.

        Raises:
            ValueError: `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError(f"cannot advance by {seconds} s; a monotonic clock does not go back")
        self.now += seconds


def _release(held: asyncio.Future[None]) -> None:
    if not held.done():
        held.set_result(None)


def _check(task: GenerationTask) -> None:
    """Refuse a task that no engine can serve.

    Raises:
        InvalidTaskError: It has no prompt, negative token ids or nothing to generate.
    """
    ids = task.input_tokens
    if (ids is None and task.input_str is None) or ids == []:
        raise InvalidTaskError("input_tokens and input_str are both None, or empty; give a prompt")
    if ids is not None and min(ids) < 0:
        raise InvalidTaskError(f"input_tokens contains {min(ids)}; token ids are 0 and above")
    if task.max_tokens is not None and task.max_tokens < 1:
        raise InvalidTaskError(f"max_tokens is {task.max_tokens}; it must be at least 1")


def _set_finish_reason(task: GenerationTask, reason: str | None) -> None:
    task.finish_reason = reason


def _num_tokens(task: GenerationTask | ScoreTask) -> int:
    return len(task.input_str or "") if task.input_tokens is None else len(task.input_tokens)
