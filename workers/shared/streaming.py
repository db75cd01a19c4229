"""Streams of any worker: open streams, their limits, and text shown to the caller."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from typing import TypeVar

from scaffolding_ext.protocol import GenerationTask, ScaffoldingOutput, StreamGenerationTask, current_scope
from scaffolding_ext.protocol.meta import meta_of
from scaffolding_ext.request.program import current_program

T = TypeVar("T")
NEVER = 1 << 60  # exceeds any request's tokens: waits for the end


class OpenStreams(dict[str, set[T]]):
    """Open streams of a worker, by the scope of the task that opened them.

    Args:
        close: The worker's method that ends a stream in the engine. It is held weakly; otherwise worker and streams
            would form a cycle that only the garbage collector frees.
    """

    def __init__(self, close: Callable[[T], Awaitable[object]]) -> None:
        super().__init__()
        self._close = weakref.WeakMethod(close)

    def add(self, stream: T) -> None:
        """Add a stream of the current task. Under a host without scopes it is kept until its program ends."""
        scope, program = current_scope.get(), current_program()
        key = scope.scope_id if scope is not None else "" if program is None else program.identity.id
        if scope is None and program is not None and key not in self:
            program.lifetime.at_end(lambda: asyncio.ensure_future(self.end(key)))
        self.setdefault(key, set()).add(stream)

    async def end(self, key: str) -> None:
        """Close the open streams of a scope or program."""
        close = self._close()
        if close is None:  # the worker and its engine are gone
            return
        for stream in self.pop(key, ()):
            await close(stream)

    def discard(self, stream: T) -> None:
        for scope_id, streams in list(self.items()):
            streams.discard(stream)
            if not streams:
                del self[scope_id]


def is_over(task: StreamGenerationTask) -> bool:
    """True if a stream has ended; one cancelled before it began ends here."""
    if task.cancel_flag and task.request_handle is None:
        task.end_flag = True
    return bool(task.end_flag)


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
