"""A running request: its programs, their results, and its answer as one document or as server-sent events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from pydantic_core import to_json

from scaffolding_ext.answers.reading import SplitText
from scaffolding_ext.controllers.chain.ending import forced_answers
from scaffolding_ext.controllers.vote.voting import drawn_by
from scaffolding_ext.documents import as_json
from scaffolding_ext.errors import RequestCancelledError
from scaffolding_ext.prompts.encoding import UNREADABLE
from scaffolding_ext.protocol.meta import Purpose, ToolCall
from scaffolding_ext.request.program import Program
from scaffolding_ext.request.results import ScaffoldingResult
from scaffolding_ext.serving.bodies import Body, ChatBody
from scaffolding_ext.serving.refusals import ApiError, of_failure
from scaffolding_ext.serving.served_stack import ServedStack, StackRequest

_NO_SHARE = {"audio_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}


class Job:
    """One request's choices, from start to end.

    Args:
        stack: The stack that answers.
        body: The request.
        wanted: The request in the stack's terms.
        on_end: Called once with the job when all choices have ended, successfully or not.
        id: Id of the request and of its answer.

    Attributes:
        results: One result per choice.
        settled: Task that ends when all choices have ended.
    """

    def __init__(
        self, stack: ServedStack, body: Body, wanted: StackRequest, on_end: Callable[[Job], None], id: str
    ) -> None:
        self.stack = stack
        self.body = body
        self.wanted = wanted
        self.is_chat = isinstance(body, ChatBody)
        self.id = id
        self.created = int(time.time())
        self._on_end = on_end
        self._ended_by: ApiError | None = None
        self._parts: dict[int, tuple[SplitText, Sequence[ToolCall]]] = {}  # of finished choices: each is parsed once
        self._usage: dict[str, Any] | None = None  # set once all choices have ended
        stack.admit(wanted.num_choices)
        try:
            self.results: list[ScaffoldingResult] = stack.submit(wanted)
        except BaseException:
            stack.leave(wanted.num_choices)
            raise
        self.settled = asyncio.create_task(self._settle())

    def cancel(self, because: ApiError | None = None) -> None:
        """Stop all running choices; engines free their memory.

        Args:
            because: The error for the client; None if the client has left.
        """
        self._ended_by = self._ended_by or because
        for result in self.results:
            result.cancel()

    def failure_of(self, index: int) -> ApiError | None:
        """Failure of a finished choice; None if it succeeded."""
        error = self.results[index].exception()
        if self._ended_by is not None and isinstance(error, RequestCancelledError):
            return self._ended_by
        return None if error is None else of_failure(error, self.wanted.sent)

    def failure(self) -> ApiError | None:
        """Failure of the first failed choice, once all have ended; None if all succeeded."""
        failures = (self.failure_of(index) for index in range(len(self.results)))
        return next((failure for failure in failures if failure is not None), None)

    def shown(self, index: int) -> SplitText:
        """The visible part of a choice that succeeded."""
        return self._read(index)[0]

    def calls(self, index: int) -> list[dict[str, Any]]:
        """Tool calls of a choice that succeeded; empty without a valid call."""
        return [
            {
                "id": f"call_{self.id}_{index}_{number}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for number, call in enumerate(self._read(index)[1])
        ]

    def _read(self, index: int) -> tuple[SplitText, Sequence[ToolCall]]:
        if index not in self._parts:
            result = self.results[index]
            shown = self.wanted.reading.split(result.outputs[0].text or "")
            calls = result.program.calls.get(result.answer or "", ())
            if calls and self.wanted.guides_call:  # the text is the call
                shown = shown._replace(answer="")
            takes_one = getattr(self.body, "parallel_tool_calls", None) is False
            self._parts[index] = shown, calls[:1] if takes_one else calls
        return self._parts[index]

    def head(self, kind: str) -> dict[str, Any]:
        """First fields of every document of the answer."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.stack.name}

    def document(self) -> dict[str, Any]:
        """Build the complete answer.

        Raises:
            ApiError: A choice failed.
        """
        failure = self.failure()
        if failure is not None:
            raise failure
        choices = [self._choice(index) for index in range(len(self.results))]
        kind = "chat.completion" if self.is_chat else "text_completion"
        return self.head(kind) | {"choices": choices, "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        """Tokens that all choices have used so far."""
        if self._usage is not None:
            return self._usage
        prompting, num_shown = self.stack.tokenized, None
        if prompting is not None and self.wanted.reading.family.thinks:
            shown = [self.shown(index) for index, result in enumerate(self.results) if result.outputs]
            num_shown = sum(len(prompting.encode(each.answer) or ()) for each in shown)
        found = _usage([result.program for result in self.results], self.wanted.num_prompt_tokens, num_shown)
        if all(result.finished for result in self.results):
            self._usage = found
        return found

    def end_of(self, index: int) -> dict[str, Any]:
        """Last fields of a choice, after its text; `finish_reason` is `length` if a budget ended the text."""
        result = self.results[index]
        program, is_cut = result.program, result.exit_reason == "length" and not self.shown(index).is_stopped
        bounds = [event for event in program.trace if event["event"] == "thinking_budget"]
        forced, drawn = forced_answers(program.trace), drawn_by(program.trace)
        with_trace = self.body.scaffolding is not None and self.body.scaffolding.trace is True
        extras = {
            "id": program.identity.id,
            "answer": result.answer,
            "exit_reason": result.exit_reason,
            "ledger": program.ledger.to_json(),
            "seed": self.wanted.seed,
            **({"drawn": {"answers": drawn.num, "most": drawn.most}} if drawn else {}),
            **({"thinking_budget": bounds} if bounds else {}),
            **({"forced_answers": forced} if forced else {}),
            **({"trace": program.trace.decisions} if with_trace else {}),
        }
        reason = "tool_calls" if self.calls(index) else "length" if is_cut else "stop"
        return {"finish_reason": reason, "scaffolding": extras}

    def _choice(self, index: int) -> dict[str, Any]:
        shown = self.shown(index)
        if not self.is_chat:
            return {"index": index, "text": shown.answer, "logprobs": None, **self.end_of(index)}
        message: dict[str, Any] = {"role": "assistant", "content": shown.answer, "refusal": None}
        if self.wanted.reading.family.thinks:
            message["reasoning_content"] = shown.thinking
        if calls := self.calls(index):
            message |= {"content": shown.answer or None, "tool_calls": calls}
        return {"index": index, "message": message, "logprobs": None, **self.end_of(index)}

    async def _settle(self) -> None:
        try:
            for result in self.results:
                await result.ended()
        finally:
            self.stack.leave(len(self.results))
            self._on_end(self)


def _usage(programs: Sequence[Program], num_prompt_tokens: int | None, num_shown_tokens: int | None) -> dict[str, Any]:
    """Token usage of a request: its prompt once, and all decoded tokens whatever their purpose.

    Args:
        programs: Programs of its choices.
        num_prompt_tokens: Tokens of its prompts; None takes the tokens of the first read.
        num_shown_tokens: Tokens of the visible text; None if thinking cannot be told apart.
    """
    decoded: dict[str, int] = {}
    read = []
    for program in programs:
        for kind, counts in program.ledger.by_purpose.items():
            if kind == Purpose.PROMPT:
                read.append(counts)
            if counts.decoded:
                name = f"{kind}_tokens"
                decoded[name] = decoded.get(name, 0) + counts.decoded
    prompt = read[0].prefilled + read[0].reused if num_prompt_tokens is None and read else num_prompt_tokens or 0
    completion = sum(decoded.values())
    reasoning = 0 if num_shown_tokens is None else max(0, completion - num_shown_tokens)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": min(prompt, sum(counts.reused for counts in read)),
            "audio_tokens": 0,
        },
        "completion_tokens_details": {"reasoning_tokens": reasoning, **_NO_SHARE, **decoded},
    }


_COMMENT = b": keep-alive\n\n"
_DONE = b"data: [DONE]\n\n"
_NOTHING = SplitText("", "", has_thought=False)


class Events:
    """Server-sent events of one job.

    Args:
        job: The job whose choices are streamed.
        keep_alive_seconds: Silence after which a comment is sent.
        on_first: Called at the first text.
    """

    def __init__(self, job: Job, keep_alive_seconds: float, on_first: Callable[[], None]) -> None:
        self._job = job
        self._seconds = keep_alive_seconds
        self._on_first = on_first
        self._changed = asyncio.Event()
        num = len(job.results)
        self._texts: list[str | None] = [None] * num
        self._sent = [_NOTHING] * num
        self._splitters = [job.wanted.reading.splitter() for _ in range(num)]
        self._fed = [""] * num
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
        """Stop the job and everything that serves it."""
        for pump in self._pumps:
            pump.cancel()
        self._job.cancel()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the events; if the reader stops early, the job stops."""
        try:
            while not all(self._ended):
                if not await self._wait():
                    yield _COMMENT
                    continue
                self._changed.clear()
                for index, result in enumerate(self._job.results):
                    if self._ended[index]:
                        continue
                    is_last = result.finished  # read before the text, which may still grow
                    for event in self._news(index, is_last):
                        yield event
                    self._ended[index] = is_last
            await asyncio.shield(self._job.settled)  # frees the room before the client sees the end
            if (self._job.body.stream_options and self._job.body.stream_options.include_usage) is True:
                yield self._event([], usage=self._job.usage())
            yield _DONE
        except ApiError as failure:  # the status has been sent
            yield b"data: " + to_json(failure.document()) + b"\n\n"
            self.close()
            await asyncio.shield(self._job.settled)
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

    def _so_far(self, index: int) -> SplitText:
        """The part of a growing text that no later text can change, unless the text itself changes."""
        text = (self._texts[index] or "").rstrip(UNREADABLE)
        if not text.startswith(self._fed[index]):
            self._splitters[index], self._fed[index] = self._job.wanted.reading.splitter(), ""
        self._splitters[index].feed(text[len(self._fed[index]) :])
        self._fed[index] = text
        return self._splitters[index].reading

    def _news(self, index: int, is_last: bool) -> list[bytes]:
        """Events for the new text of a choice, and for its end.

        Raises:
            ApiError: The choice failed, or changes text that was already sent.
        """
        before = self._sent[index]
        failure = self._job.failure_of(index) if is_last else None
        if failure is not None:
            raise failure
        now = self._job.shown(index) if is_last else self._so_far(index)
        if self._job.wanted.guides_call and not is_last:
            now = now._replace(answer="")  # it becomes a tool call
        if not (now.thinking.startswith(before.thinking) and now.answer.startswith(before.answer)):
            raise ApiError(
                500, "the controller changed text that had been sent: send the request without stream", "stream_broken"
            )
        self._sent[index] = now
        events = []
        reasoning, content = now.thinking[len(before.thinking) :], now.answer[len(before.answer) :]
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
