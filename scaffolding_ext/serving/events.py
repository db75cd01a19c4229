"""A job as server-sent events: text once it is final, comments during silence, and always an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from pydantic_core import to_json

from scaffolding_ext.documents import as_json
from scaffolding_ext.serving.jobs import Job
from scaffolding_ext.serving.refusals import ApiError
from scaffolding_ext.serving.thinking import Shown

_COMMENT = b": keep-alive\n\n"
_DONE = b"data: [DONE]\n\n"
_NOTHING = Shown("", "", False)


class Events:
    """The events of one job.

    Args:
        job: Streams its choices.
        keep_alive_seconds: Silence after which a comment is sent.
        on_first: Called when the first text comes.
    """

    def __init__(self, job: Job, keep_alive_seconds: float, on_first: Callable[[], None]) -> None:
        self._job = job
        self._seconds = keep_alive_seconds
        self._on_first = on_first
        self._changed = asyncio.Event()
        num = len(job.results)
        self._texts: list[str | None] = [None] * num
        self._sent = [_NOTHING] * num
        self._begun = [False] * num
        self._ended = [False] * num
        self._pumps = [asyncio.create_task(self._pump(index)) for index in range(num)]

    async def ready(self) -> None:
        """Wait for the first text or the end of a silence; a failure before that gets its own HTTP status.

        Raises:
            ApiError: A choice failed before any choice had text.
        """
        await self._wait()
        failed = [result for result in self._job.results if result.finished and result.exception() is not None]
        if failed and not any(self._texts):
            self.close()
            await self._job.settled
            failure = self._job.failure()
            assert failure is not None
            raise failure

    def close(self) -> None:
        """Stop all that goes on."""
        for pump in self._pumps:
            pump.cancel()
        self._job.cancel()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The events; a reader that stops before the end stops the job."""
        try:
            while not all(self._ended):
                if not await self._wait():
                    yield _COMMENT
                    continue
                self._changed.clear()
                for index, result in enumerate(self._job.results):
                    if self._ended[index]:
                        continue
                    is_last = result.finished  # read before the text, because the text may still grow
                    for event in self._news(index, is_last):
                        yield event
                    self._ended[index] = is_last
            if (self._job.body.stream_options and self._job.body.stream_options.include_usage) is True:
                yield self._event([], usage=self._job.usage())
            yield _DONE
        except ApiError as failure:  # the status is sent already
            yield b"data: " + to_json(failure.document()) + b"\n\n"
            yield _DONE
        finally:
            self.close()

    async def _wait(self) -> bool:
        try:
            await asyncio.wait_for(self._changed.wait(), self._seconds)
        except asyncio.TimeoutError:
            return False
        return True

    async def _pump(self, index: int) -> None:
        part = None
        while (part := await self._job.results[index].newest(part)) is not None:
            self._texts[index] = part.text
            self._changed.set()
        self._changed.set()

    def _news(self, index: int, is_last: bool) -> list[bytes]:
        """Events for what is new in a choice, and for its end.

        Raises:
            ApiError: The choice failed, or changes text that was already sent.
        """
        before = self._sent[index]
        failure = self._job.failure_of(index) if is_last else None
        if failure is not None:
            raise failure
        now = self._job.shown(index) if is_last else self._job.wanted.reading.growing(self._texts[index] or "")
        if self._job.wanted.tool_names and not is_last:
            now = now._replace(content="")  # the content may become a tool call
        if not (now.reasoning.startswith(before.reasoning) and now.content.startswith(before.content)):
            raise ApiError(
                500,
                "the controller changed text that was sent already: send the request without stream",
                "stream_broken",
            )
        self._sent[index] = now
        events = []
        reasoning, content = now.reasoning[len(before.reasoning) :], now.content[len(before.content) :]
        if reasoning or content or is_last:
            if not self._begun[index] and self._job.is_chat:
                events.append(self._event([_choice(index, {"role": "assistant", "content": ""})]))
            if not self._begun[index]:
                self._begun[index] = True
                self._on_first()
        if self._job.is_chat:
            if reasoning:
                events.append(self._event([_choice(index, {"reasoning_content": reasoning})]))
            if content:
                events.append(self._event([_choice(index, {"content": content})]))
            if is_last and (calls := self._job.calls(index)):
                numbered = [{"index": number, **call} for number, call in enumerate(calls)]
                events.append(self._event([_choice(index, {"tool_calls": numbered})]))
            if is_last:
                events.append(self._event([_choice(index, {}) | self._job.end_of(index)]))
        elif content or is_last:
            end = self._job.end_of(index) if is_last else {"finish_reason": None}
            events.append(self._event([{"index": index, "text": content, "logprobs": None, **end}]))
        return events

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        kind = "chat.completion.chunk" if self._job.is_chat else "text_completion"
        return (
            b"data: "
            + to_json(self._job.head(kind) | {"choices": choices} | more, inf_nan_mode="null", fallback=as_json)
            + b"\n\n"
        )


def _choice(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
