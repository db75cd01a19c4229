"""A request's answer, whole or growing, and the steps of its stream, for every worker that generates."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from scaffolding_ext.protocol import GenerationTask, ScaffoldingOutput, StreamGenerationTask, TaskStatus, current_scope
from scaffolding_ext.protocol.meta import TokenCounts, ToolCall, meta_of, note
from scaffolding_ext.request.program import current_program
from scaffolding_ext.workers.chat import ChatWorker

if TYPE_CHECKING:
    from scaffolding_ext.protocol.standins import TaskHandler

NEVER = 1 << 60  # exceeds any request's tokens: waits for the end


class Answer(NamedTuple):
    """An answer so far, or its final state.

    Attributes:
        text: Its text; while it grows, without an end that may begin a stop string.
        token_ids: None if the server returns none.
        finish_reason: `"stop"`, `"length"`, `"cancelled"` or `PAUSED`, `"error"`; None while it grows.
        counts: Its cost.
        logprobs: Reported log-probabilities by id, per token; None if not requested.
        context_logits: Logits of the prompt, of shape [tokens, vocabulary]; None if not requested.
        uncounted: Part of its cost that remains unknown, once it has ended; see `Meta`.
        calls: Its tool calls so far; see `Meta`.
        error: Failure that ended it.
        ttft_s: Seconds from submission to the first token, if known.
        latency_s: Seconds from submission to now.
    """

    text: str
    token_ids: list[int] | None
    finish_reason: str | None
    counts: TokenCounts
    logprobs: list[Any] | None = None
    context_logits: Any = None
    uncounted: str | None = None
    calls: tuple[ToolCall, ...] = ()
    error: Exception | None = None
    ttft_s: float | None = None
    latency_s: float = 0.0

    def fill(self, task: GenerationTask) -> bool:
        """Write it to its task, and return True if it has ended; raises its error."""
        note(task, counts=self.counts, uncounted=self.uncounted, calls=self.calls)
        task.output_str, task.output_tokens, task.finish_reason = self.text, self.token_ids, self.finish_reason
        if self.logprobs:
            task.logprobs = self.logprobs
        if self.context_logits is not None:
            task.context_logits = self.context_logits
        if hasattr(task, "ttft_s"):  # missing in upstream's 1.2
            task.ttft_s, task.latency_s = self.ttft_s, self.latency_s
            task.usage_prompt_tokens = self.counts.prefilled + self.counts.reused
            task.usage_completion_tokens = self.counts.decoded if self.token_ids is None else len(self.token_ids)
        if self.error is not None:
            raise self.error
        return self.finish_reason is not None


class Stream(ABC):
    """A request whose answer grows; its task holds it. It may be used from one coroutine at a time.

    Attributes:
        pauses: True if it pauses at the limit of `let_run_to` and goes on; otherwise it ends there with `PAUSED`.
    """

    pauses = False

    @abstractmethod
    async def wait(self, num_tokens: int) -> Answer:
        """Wait until it has that many tokens or has ended."""

    @abstractmethod
    async def cancel(self) -> Answer | None:
        """End it and return its answer so far; None if nothing is known of it."""

    @abstractmethod
    async def close(self) -> None:
        """End it if it still runs; may be called again. Does not wait for an engine."""

    @abstractmethod
    def let_run_to(self, num_tokens: int) -> None:
        """Set the number of tokens that it may have until its reader asks for more."""

    @property
    @abstractmethod
    def counts(self) -> TokenCounts:
        """Its cost so far."""


class OpenStreams(dict[str, set[Stream]]):
    """Open streams of a worker, by the scope of the task that opened them."""

    def add(self, stream: Stream) -> None:
        """Add a stream of the current task. Under a host without scopes it is kept until its program ends."""
        scope, program = current_scope.get(), current_program()
        key = scope.scope_id if scope is not None else "" if program is None else program.identity.id
        if scope is None and program is not None and key not in self:
            program.lifetime.at_end(lambda: asyncio.ensure_future(self.end(key)))
        self.setdefault(key, set()).add(stream)

    async def end(self, key: str) -> None:
        """Close the open streams of a scope or program."""
        for stream in self.pop(key, ()):
            await stream.close()

    async def discard(self, stream: Stream) -> None:
        """Close a stream and forget it."""
        for scope_id, streams in list(self.items()):
            streams.discard(stream)
            if not streams:
                del self[scope_id]
        await stream.close()


class StreamingWorker(ChatWorker):
    """Serves generation and streams, given `_open`, which submits a task's request."""

    def __init__(self) -> None:
        self._streams = OpenStreams()

    def _open(self, task: GenerationTask, end_at: int | None = None, kv: Any = None) -> Stream:
        """Begin a request; with `end_at` it always ends at that number of tokens. `kv` says how its KV is kept."""
        raise NotImplementedError  # every subclass has one

    async def on_scope_end(self, scope_id: str) -> None:
        """Close the open streams of a request or branch, which frees their KV."""
        await self._streams.end(scope_id)

    async def _generate(self, task: GenerationTask, kv: Any = None) -> TaskStatus:
        stream = self._open(task, kv=kv)
        task.output_tokens = None
        is_shown, num_steps, ended = bool(task.streaming_output_flag), 0, False
        try:
            while not ended:
                num_steps += 1  # a server without ids sends pieces of text
                num_tokens = max(num_steps, len(task.output_tokens or ()) + 1) if is_shown else NEVER
                ended = await _step(task, stream, num_tokens)
                if is_shown:
                    show(task)
        finally:
            await stream.close()
        return TaskStatus.SUCCESS

    async def _stream(self, task: StreamGenerationTask) -> TaskStatus:
        if task.cancel_flag and task.request_handle is None:  # cancelled before it began
            task.end_flag = True
        if task.end_flag:
            return TaskStatus.SUCCESS
        if task.request_handle is None:
            task.request_handle = self._open(task, fixed_end(task))
            self._streams.add(task.request_handle)
            task.output_tokens = None
        stream: Stream = task.request_handle
        if stream.pauses or not task.streaming_output_flag:  # a caller's stream is one text
            stream.let_run_to(furthest(task))
        try:
            task.end_flag = await _step(task, stream, None if task.cancel_flag else next_len(task))
        except BaseException:
            await self._streams.discard(stream)
            raise
        if task.end_flag:
            await self._streams.discard(stream)
        elif task.streaming_output_flag:
            show(task)
        return TaskStatus.SUCCESS

    task_handlers: ClassVar[dict[type[Any], TaskHandler]] = {
        **ChatWorker.task_handlers,
        GenerationTask: _generate,
        StreamGenerationTask: _stream,
    }


async def _step(task: GenerationTask, stream: Stream, num_tokens: int | None) -> bool:
    """Let a task's stream grow to that many tokens, or cancel it if they are None; return True if it has ended."""
    try:
        answer = await (stream.cancel() if num_tokens is None else stream.wait(num_tokens))
        return answer is None or answer.fill(task)
    except asyncio.CancelledError:
        note(task, counts=stream.counts)  # a cancelled request also has a cost
        raise


def next_len(task: StreamGenerationTask) -> int:
    """Number of tokens of a stream after its next step, if it does not end before."""
    return len(task.output_tokens or ()) + max(1, task.streaming_step or 1)


def furthest(task: StreamGenerationTask) -> int:
    """Number of tokens a stream may have until its controller asks for more, by its note and the current step."""
    limit = meta_of(task).may_run_to
    return NEVER if limit is None else max(limit, next_len(task))


def fixed_end(task: StreamGenerationTask) -> int | None:
    """Number of tokens at which a stream ends whatever the load, for a worker that cannot pause it.

    None for a greedy stream and one without a seed: these end only if they run too far ahead of their reader. The chain
    continues in another stream. So a seeded engine repeats its texts.
    """
    if task.streaming_output_flag or task.seed is None or task.temperature == 0:
        return None
    limit = furthest(task)
    return None if limit == NEVER else limit


def show(task: GenerationTask) -> None:
    """Show the caller the task's text so far."""
    task.streaming_output_list.append(ScaffoldingOutput(task.output_str, list(task.output_tokens or ())))
