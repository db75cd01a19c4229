"""Streams of any worker: which are open, how far each may run, and what the caller sees."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

from scaffolding_ext.protocol import GenerationTask, ScaffoldingOutput, StreamGenerationTask, current_scope
from scaffolding_ext.protocol.meta import meta_of
from scaffolding_ext.request.program import current_program

T = TypeVar("T")
NEVER = 1 << 60  # more tokens than any request has: waits for its end
Seams = Literal["fixed", "late", "none"]
"""Where a worker that cannot pause a stream ends one that nobody has asked more of; its chain goes on in another.

- `"fixed"`: at the limit that its first step has, whatever the time: a seeded engine gives the same texts at any load.
- `"late"`: only where it gets so far ahead: the fewest requests, at places that depend on time.
- `"none"`: nowhere: the texts are those of one stream, and what it decodes in vain has no limit.
"""


class OpenStreams(dict[str, set[T]]):
    """The streams that a worker holds open, by the scope of the task that opened them.

    Args:
        close: The worker's method that ends one of them in the engine. It is held weakly: otherwise worker
            and streams would hold each other, and only the cycle collector would free them.
    """

    def __init__(self, close: Callable[[T], Awaitable[object]]) -> None:
        super().__init__()
        self._close = weakref.WeakMethod(close)

    def add(self, stream: T) -> None:
        """Note a stream of the task being served. Under a host without scopes it is kept until its program ends."""
        scope, program = current_scope.get(), current_program()
        key = scope.scope_id if scope is not None else "" if program is None else program.identity.id
        if scope is None and program is not None and key not in self:
            program.lifetime.at_end(lambda: asyncio.ensure_future(self.end(key)))
        self.setdefault(key, set()).add(stream)

    async def end(self, key: str) -> None:
        """Close what a scope or program has left open."""
        close = self._close()
        if close is None:  # the worker is gone, and its engine with it
            return
        for stream in self.pop(key, ()):
            await close(stream)

    def discard(self, stream: T) -> None:
        for scope_id, streams in list(self.items()):
            streams.discard(stream)
            if not streams:
                del self[scope_id]


def is_over(task: StreamGenerationTask) -> bool:
    """Whether a stream has ended. A stream that is cancelled before it began ends here."""
    if task.cancel_flag and task.request_handle is None:
        task.end_flag = True
    return bool(task.end_flag)


def next_len(task: StreamGenerationTask) -> int:
    """How many tokens a stream shall have after its next step, where it does not end before."""
    return len(task.output_tokens or ()) + max(1, task.streaming_step or 1)


def furthest(task: StreamGenerationTask) -> int:
    """How many tokens a stream may have until its controller asks for more: by its note and by the present step."""
    limit = meta_of(task).may_run_to
    return NEVER if limit is None else max(limit, next_len(task))


def fixed_end(task: StreamGenerationTask, seams: Seams | None) -> int | None:
    """The number of tokens at which a stream ends at any load; None where time decides, or nothing ends it.

    `seams` None takes `"fixed"` for a sampled stream with a seed, which is to repeat.
    """
    repeats = task.seed is not None and task.temperature != 0
    if task.streaming_output_flag or seams in ("late", "none") or not (seams or repeats):
        return None
    limit = furthest(task)
    return None if limit == NEVER else limit


def show(task: GenerationTask) -> None:
    """Let the caller see what the task has so far."""
    task.streaming_output_list.append(ScaffoldingOutput(task.output_str, list(task.output_tokens or ())))
