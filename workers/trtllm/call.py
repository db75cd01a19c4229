"""One request to TensorRT-LLM's LLM API, from its submission to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from scaffolding_ext.errors import EngineError
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.notes import PAUSED, TokenCounts, set_token_counts
from scaffolding_ext.request.program import current_program
from scaffolding_ext.workers.shared.streaming import NEVER

_QUEUE_TIME = "request_queue_time"


class Call:
    """Reads each report of the engine as soon as it comes, so that its state is never old and no reports pile up.

    It belongs to the event loop on which it is made.

    Args:
        result: What `LLM.generate_async` returned.
        prompt_len: Tokens of the prompt.
        timeout: Seconds from now within which the request must end; None waits for ever. A timer ends the request.
            `wait_for` is not used: before Python 3.12 it loses a cancellation that comes together with a token.

    Attributes:
        ended: Whether the request has ended, for any reason.
        is_piece: Whether its budget is only a part of its task's budget, so that the request's end is a pause.
        may_run_to: Number of tokens at which the request is ended, with `PAUSED` as its reason: the engine cannot pause
            it.
    """

    def __init__(self, result: Any, prompt_len: int, timeout: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._result = result
        self._prompt_len = prompt_len
        self._started = self._loop.time()
        self._first_token_at: float | None = None
        self._error: EngineError | None = None
        self._moved = asyncio.Event()
        self.ended = False
        self.is_piece = False
        self.may_run_to = NEVER
        self._given_up = False
        self._timer = None if timeout is None else self._loop.call_later(timeout, self._expire, timeout)
        self._pump = self._loop.create_task(self._take_in())

    @property
    def result(self) -> Any:
        """TensorRT-LLM's own result object, with what has come so far."""
        return self._result

    @property
    def output(self) -> Any:
        """Its first and only completion so far."""
        return self._result.outputs[0]

    @property
    def counts(self) -> TokenCounts:
        """The cost of the request; a request that the engine never ran has cost nothing."""
        num_decoded = len(self.output.token_ids or ())
        if not num_decoded and not self._result.finished:
            return TokenCounts()
        num_reused = min(getattr(self._result, "cached_tokens", 0) or 0, self._prompt_len)
        return TokenCounts(num_decoded, self._prompt_len - num_reused, num_reused)

    async def wait(self, num_tokens: int = NEVER) -> None:
        """Wait until the request has that many tokens or has ended; a cancelled wait aborts it.

        Raises:
            EngineError: The request failed or took too long, or the engine ended it early.
        """
        try:
            while not self.ended and len(self.output.token_ids or ()) < num_tokens:
                self._moved.clear()
                await self._moved.wait()
        except asyncio.CancelledError:
            self.abort()
            raise
        if self._error is not None:
            raise self._error
        reason = self.output.finish_reason
        if self.ended and not self._given_up and reason not in (None, "stop", "length"):
            raise EngineError(f"TensorRT-LLM ended a request early, with finish_reason {reason!r}")

    def abort(self) -> None:
        """Stop the engine's work on it; what has come so far stays."""
        if not self._result.finished:
            self._result.abort()
        self._pump.cancel()
        self._end()

    def _expire(self, timeout: float) -> None:
        num_tokens = len(self.output.token_ids or ())
        self._end(
            EngineError(
                f"TensorRT-LLM did not end a request of {self._prompt_len} prompt tokens within request_timeout "
                f"({timeout} s), in which it sent {num_tokens} tokens: raise request_timeout, or lower max_tokens"
            )
        )
        self.abort()

    def fail(self, error: EngineError) -> None:
        """End it with an error, from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end, error)

    def fill(self, task: GenerationTask) -> None:
        """Write into the task what has come so far."""
        output = self.output
        task.output_str = output.text
        task.output_tokens = list(output.token_ids or ())
        task.finish_reason = output.finish_reason if self.ended else None
        if self._given_up or (self.is_piece and task.finish_reason == "length"):
            task.finish_reason = PAUSED
        if output.logprobs:
            task.logprobs = list(output.logprobs)[
                : len(task.output_tokens)
            ]  # ids of a stop string are cut off, its entries are not
            total = _total(task) if output.cumulative_logprob is None else float(output.cumulative_logprob)
            if total is not None:
                task.customized_result_fields["cumulative_logprob"] = total
        if task.return_context_logits:
            task.context_logits = self._result.context_logits
        if hasattr(task, "ttft_s"):  # upstream's 1.2 does not have it yet
            task.ttft_s = None if self._first_token_at is None else self._first_token_at - self._started
            task.latency_s = self._loop.time() - self._started
            task.usage_prompt_tokens, task.usage_completion_tokens = self._prompt_len, len(task.output_tokens)
            task.request_id = str(self._result.request_id)
        set_token_counts(task, self.counts)

    async def _take_in(self) -> None:
        try:
            async for _ in self._result:
                if self._first_token_at is None and self.output.token_ids:
                    self._first_token_at = self._loop.time()
                may_go_on = self.is_piece or len(self.output.token_ids or ()) < self.may_run_to
                if not may_go_on and not self._result.finished:
                    self._given_up = True
                    self._result.abort()
                    break
                self._moved.set()
            if isinstance(self.output.stop_reason, str) and not self._result.aborted():
                self._result.abort()  # the text ended at a stop string; not every release tells the engine
        except Exception as error:  # of any type: the engine's own, of one request
            self._end(EngineError(f"TensorRT-LLM failed a request: {type(error).__name__}: {error}"), error)
        else:
            self._note_queue_time()
            self._end()

    def _end(self, error: EngineError | None = None, cause: Exception | None = None) -> None:
        if not self.ended and error is not None:
            error.__cause__ = cause
            self._error = error
        if self._timer is not None:
            self._timer.cancel()
        self.ended = True
        self._moved.set()

    def _note_queue_time(self) -> None:
        program = current_program()
        metrics: Mapping[Any, float] = getattr(self._result, "metrics_dict", None) or {}
        for name, seconds in metrics.items():
            if program is not None and getattr(name, "value", name) == _QUEUE_TIME:
                program.ledger.queue_seconds += seconds


def _total(task: GenerationTask) -> float | None:
    """The log-probability of the whole output; None where the release reports only the likeliest tokens."""
    steps = list(zip(task.output_tokens or (), task.logprobs, strict=False))
    if not all(token in step for token, step in steps):
        return None
    return float(sum(step[token].logprob for token, step in steps))
