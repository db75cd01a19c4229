"""Record a request's worker calls in the format of upstream's `ExecutionTrace`, for its replay tools.

Unlike a program's trace of decisions, it holds calls with token counts, as TensorRT-LLM's `ExecutionTracer` does.

Deviations: A stream is one call, at its end. The prompt's message has its `tokens`. Branches are numbered from 0 at
    each fork, as upstream's replay expects. A `VerifyTask` or `BranchTask` is one call with the sum of its requests; a
    `ScoreTask` decodes one token, replay's minimum. A task without tokens is a tool call, kept with its time.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from scaffolding_ext.protocol import (
    ChatTask,
    ControllerGenerator,
    DropKVCacheTask,
    GenerationTask,
    ParallelProcess,
    StreamGenerationTask,
    Task,
    TokenizeTask,
    close_generator,
)
from scaffolding_ext.protocol.task_results import cost_of, finish_reason_of

_FULL_ONLY = ("content", "llm_duration_ms", "tool_arguments", "tool_result")  # omitted from compact traces, as upstream


@dataclass
class TraceEvent:
    """An event with upstream's fields: a message, tool_call, parallel_start, parallel_end or drop_kv_cache."""

    event_type: str = ""
    branch_path: list[int] = field(default_factory=list)
    conversation_id: int | None = None
    role: str | None = None
    message_index: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    llm_duration_ms: float | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None
    duration_ms: float | None = None
    tool_arguments: Any | None = None
    tool_result: str | None = None
    num_branches: int | None = None
    content: str | None = None
    tokens: int | None = None


class _Chat(NamedTuple):
    """A conversation that may continue; holding the task keeps its id unique."""

    task: Any
    number: int
    num_told: int
    num_tokens: int


class ExecutionRecorder:
    """Records a controller's worker calls as `events`, branch by branch, in the order of the calls' ends."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.events: list[TraceEvent] = []
        self._clock = clock
        self._chats: dict[int, _Chat] = {}
        self._streams: dict[int, tuple[StreamGenerationTask, float]] = {}
        self._num_conversations = 0

    def watch(self, work: Iterable[Any]) -> ControllerGenerator:
        try:
            return (yield from self._watch(work, (), self.events))
        finally:  # the request has ended, so open streams will not
            _add(self.events, (), [self._generation(task, ms) for task, ms in self._streams.values()])
            self._streams.clear()

    def _watch(self, work: Iterable[Any], path: tuple[int, ...], events: list[TraceEvent]) -> ControllerGenerator:
        inner = iter(work)
        try:
            while True:
                try:
                    step = next(inner)
                except StopIteration as end:
                    return end.value
                if isinstance(step, ParallelProcess):
                    branches: list[list[TraceEvent]] = [[] for _ in step.sub_gens]
                    step.sub_gens = [
                        self._watch(branch, (*path, index), branches[index])
                        for index, branch in enumerate(step.sub_gens)
                    ]
                    try:
                        yield step
                    finally:
                        _fork(events, path, branches)
                    continue
                started = self._clock()
                yield step
                _add(events, path, [self._calls(task, 1000 * (self._clock() - started)) for task in step])
        finally:
            close_generator(inner)

    def to_json(self, trace_id: str, *, full: bool = False) -> dict[str, Any]:
        """Return the trace for upstream's `ExecutionTrace.load`; `full` adds texts, arguments and call times."""
        left_out = () if full else _FULL_ONLY
        events = [
            {
                name: value
                for name, value in dataclasses.asdict(event).items()
                if not (value is None or name in left_out)
            }
            for event in self.events
        ]
        return {"trace_id": trace_id, "events": events}

    def save(self, path: str | os.PathLike[str], trace_id: str, *, full: bool = False) -> None:
        """Write `to_json` to a file; OSError if that fails."""
        document = self.to_json(trace_id, full=full)
        Path(path).write_text(json.dumps(document, indent=2, ensure_ascii=False, default=str), encoding="utf-8")

    def _calls(self, task: Task, milliseconds: float) -> list[TraceEvent]:
        if isinstance(task, ChatTask):
            return self._chat(task, milliseconds)
        if isinstance(task, StreamGenerationTask):
            before = self._streams.pop(id(task), (task, 0.0))[1]
            if task.end_flag:
                return self._generation(task, before + milliseconds)
            self._streams[id(task)] = (task, before + milliseconds)
            return []
        if isinstance(task, TokenizeTask):
            return []
        if isinstance(task, DropKVCacheTask):
            return [TraceEvent("drop_kv_cache")]
        if isinstance(task, GenerationTask) or cost_of(task) is not None:
            return self._generation(task, milliseconds)
        return [
            TraceEvent(
                "tool_call",
                tool_call_id=getattr(task, "tool_call_id", None),
                tool_name=getattr(task, "tool_name", None) or type(task).__name__,
                duration_ms=milliseconds,
                tool_arguments=getattr(task, "args", None),
                tool_result=getattr(task, "result_str", None),
            )
        ]

    def _generation(self, task: Any, milliseconds: float) -> list[TraceEvent]:
        number = self._new_conversation()
        asked, written = _num_tokens(task)
        question = TraceEvent("message", conversation_id=number, role="user", tokens=asked)
        question.content = getattr(task, "input_str", None)
        return [question, _answer(task, number, asked, written, milliseconds, getattr(task, "output_str", None))]

    def _chat(self, task: Any, milliseconds: float) -> list[TraceEvent]:
        """Return the chat's messages since the last call; the last message read carries their tokens."""
        chat = self._chats.get(id(task)) or _Chat(task, self._new_conversation(), 0, 0)
        asked, written = _num_tokens(task)
        *read, answer = task.messages[chat.num_told :] or [None]
        if answer is None or answer.role != "assistant":  # it failed
            return []
        events = [
            TraceEvent(
                "message", conversation_id=chat.number, role=message.role, message_index=index, content=message.content
            )
            for index, message in enumerate(read, chat.num_told)
        ]
        for event in events[-1:]:
            event.tokens = max(0, asked - chat.num_tokens)
        events.append(_answer(task, chat.number, asked, written, milliseconds, answer.content))
        events[-1].message_index = len(task.messages) - 1
        self._chats[id(task)] = _Chat(task, chat.number, len(task.messages), asked + written)
        return events

    def _new_conversation(self) -> int:
        self._num_conversations += 1
        return self._num_conversations - 1


def _add(events: list[TraceEvent], path: tuple[int, ...], calls: list[list[TraceEvent]]) -> None:
    calls = [each for each in calls if each]
    for index, call in enumerate(calls):
        for event in call:
            event.branch_path = [*path, index] if len(calls) > 1 else list(path)
    if len(calls) > 1:
        _fork(events, path, calls)
    else:
        events += [event for call in calls for event in call]


def _fork(events: list[TraceEvent], path: tuple[int, ...], branches: list[list[TraceEvent]]) -> None:
    """Append the branches' events one branch after another, because replay ends the newest fork first."""
    events.append(TraceEvent("parallel_start", list(path), num_branches=len(branches)))
    for branch in branches:
        events += branch
    events.append(TraceEvent("parallel_end", list(path)))


def _num_tokens(task: Any) -> tuple[int, int]:
    cost = cost_of(task)
    if cost is None:
        return len(task.input_tokens or ()), max(1, len(task.output_tokens or ()))
    return cost.read.prefilled + cost.read.reused, max(1, cost.written.decoded + cost.written.reused)


def _answer(
    task: Any, conversation: int, asked: int, written: int, milliseconds: float, content: str | None
) -> TraceEvent:
    return TraceEvent(
        "message",
        conversation_id=conversation,
        role="assistant",
        prompt_tokens=asked,
        completion_tokens=written,
        finish_reason=finish_reason_of(task) if isinstance(task, GenerationTask) else None,
        llm_duration_ms=milliseconds,
        content=content,
    )
