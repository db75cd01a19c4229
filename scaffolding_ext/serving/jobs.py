"""A running request: its programs, their ends, and the documents of its answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from scaffolding_ext.prompts.tool_calls import said
from scaffolding_ext.request.results import ScaffoldingResult
from scaffolding_ext.serving import shapes
from scaffolding_ext.serving.bodies import Body, ChatBody
from scaffolding_ext.serving.refusals import ApiError, of_failure
from scaffolding_ext.serving.served_stack import Asked, ServedStack
from scaffolding_ext.serving.texts import Shown


class Job:
    """One request's choices, from their start to their end.

    Args:
        stack: The stack that answers.
        body: The request.
        asked: The request in the terms of the stack.
        on_end: Called once with the job when all choices have ended, with or without an error.
        id: The id of the request and of its answer.

    Attributes:
        id: As given.
        results: One result for each choice.
        settled: A task that ends when all choices have ended.
    """

    def __init__(self, stack: ServedStack, body: Body, asked: Asked, on_end: Callable[[Job], None], id: str) -> None:
        self.stack = stack
        self.body = body
        self.asked = asked
        self.is_chat = isinstance(body, ChatBody)
        self.id = id
        self.created = int(time.time())
        self._on_end = on_end
        self._usage: dict[str, Any] | None = None  # set once all choices have ended
        stack.admit(len(asked.prompts) * asked.num_samples)
        try:
            self.results: list[ScaffoldingResult] = stack.submit(asked)
        except BaseException:
            stack.num_open -= len(asked.prompts) * asked.num_samples
            raise
        self.settled = asyncio.create_task(self._settle())

    def cancel(self) -> None:
        """Stop all running choices; engines free the memory of these choices."""
        for result in self.results:
            result.cancel()

    def failure_of(self, index: int) -> ApiError | None:
        """The failure of a choice that has ended; None if it ended well."""
        error = self.results[index].exception()
        return None if error is None else of_failure(error)

    def failure(self) -> ApiError | None:
        """The failure of the first choice that failed, once all have ended; None if none did."""
        failures = (self.failure_of(index) for index in range(len(self.results)))
        return next((failure for failure in failures if failure is not None), None)

    def shown(self, index: int) -> Shown:
        """The part of a choice that the client sees; the choice has ended without an error."""
        shown = self.asked.reading.whole(self.results[index].outputs[0].text or "")
        if self.asked.tool_names and (calls := said(shown.content, self.asked.tool_names)).calls:
            return shown._replace(content=calls.text)
        return shown

    def calls(self, index: int) -> list[dict[str, Any]]:
        """The tool calls of a choice that has ended without an error; empty if it makes no valid call."""
        if not self.asked.tool_names:
            return []
        text = self.asked.reading.whole(self.results[index].outputs[0].text or "").content
        return [
            {
                "id": f"call_{self.id}_{index}_{number}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
            for number, call in enumerate(said(text, self.asked.tool_names).calls or ())
        ]

    @property
    def num_tokens(self) -> int:
        """Prompt and decoded tokens so far."""
        return int(self.usage()["total_tokens"])

    def head(self, kind: str) -> dict[str, Any]:
        """The fields with which every document of the answer begins."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.stack.name}

    def document(self) -> dict[str, Any]:
        """The whole answer.

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
        """What all choices have used so far."""
        if self._usage is not None:
            return self._usage
        prompting, num_shown = self.stack.prompting, None
        if prompting is not None and self.asked.reading.think_close is not None:
            shown = [self.shown(index) for index, result in enumerate(self.results) if result.outputs]
            num_shown = sum(len(prompting.encode(each.content)) for each in shown)
        found = shapes.usage([result.program for result in self.results], self.asked.num_prompt_tokens, num_shown)
        if all(result.finished for result in self.results):
            self._usage = found
        return found

    def end_of(self, index: int) -> dict[str, Any]:
        """The fields with which a choice ends, beside its text."""
        result = self.results[index]
        reason = "tool_calls" if self.calls(index) else shapes.finish_reason(result, self.shown(index))
        return {
            "finish_reason": reason,
            "scaffolding": shapes.extras(result, self.asked.seed, self.asked.with_trace),
        }

    def _choice(self, index: int) -> dict[str, Any]:
        shown = self.shown(index)
        logprobs = None if self.body.num_logprobs is None else self._logprobs(index)
        if not self.is_chat:
            return {"index": index, "text": shown.content, "logprobs": logprobs, **self.end_of(index)}
        message: dict[str, Any] = {"role": "assistant", "content": shown.content, "refusal": None}
        if self.asked.reading.think_close is not None:
            message["reasoning_content"] = shown.reasoning
        if calls := self.calls(index):
            message |= {"content": shown.content or None, "tool_calls": calls}
        return {"index": index, "message": message, "logprobs": logprobs, **self.end_of(index)}

    def _logprobs(self, index: int) -> dict[str, Any] | None:
        prompting, num_top = self.stack.prompting, self.body.num_logprobs or 0
        if prompting is None:
            return None
        if self.is_chat:
            return shapes.chat_logprobs(self.results[index], self.asked.reading, prompting, num_top)
        return shapes.text_logprobs(self.results[index], prompting, num_top)

    async def _settle(self) -> None:
        try:
            for result in self.results:
                await result.ended()
        finally:
            self.stack.num_open -= len(self.results)
            self._on_end(self)
