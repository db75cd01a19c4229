"""One request to TensorRT-LLM's LLM API, from submission to end, and the event loop of its LLM.

TensorRT-LLM wakes all readers of a batch on the event loop of the batch's first request. If requests of one LLM come
from two loops, readers on the other loop never wake.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from scaffolding_ext.errors import EngineError
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.meta import PAUSED, TokenCounts, note
from scaffolding_ext.workers.shared.id_stops import IdStops
from scaffolding_ext.workers.shared.own_loop import OwnLoop
from scaffolding_ext.workers.shared.streaming import NEVER

SHUT_DOWN = "the worker has been shut down and takes no tasks: make a new worker"
_QUEUE_TIME = "request_queue_time"
_log = logging.getLogger(__name__)
_adopting = threading.Lock()


class LlmLoop(OwnLoop):
    """The event loop of an LLM; replaces `llm.generate_async` while workers use the LLM."""

    def __init__(self, llm: Any) -> None:
        super().__init__("tensorrt-llm", SHUT_DOWN)
        self._generate_async = llm.generate_async
        self._num_users = 0
        functools.update_wrapper(self, llm.generate_async)

    @classmethod
    def enter(cls, llm: Any) -> LlmLoop:
        """Return the loop of an LLM, shared by its workers. Each calls `leave` when it ends."""
        with _adopting:
            current = vars(llm).get("generate_async")
            if not isinstance(current, cls):
                current = llm.generate_async = cls(llm)
            current._num_users += 1
            return current

    def leave(self, llm: Any) -> None:
        """Release the LLM. After the last worker has left, it may be used from any loop."""
        with _adopting:
            self._num_users -= 1
            if self._num_users:
                return
            del llm.generate_async
        self.close()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Submit a request, from this loop or from a thread without a loop.

        Raises:
            EngineError: Another loop runs in the calling thread.
        """
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = self.loop
        if running is not self.loop:
            raise EngineError(
                "a TRTLLMWorker uses this LLM, and TensorRT-LLM serves requests from only one event loop: send the "
                "request to the worker (run_task), call generate_async in a thread without an event loop, or load "
                "another LLM"
            )
        return self._generate_async(*args, **kwargs)


class RequestProgress(NamedTuple):
    """Progress of a request.

    Attributes:
        logprobs: Per generated token, the reported tokens and their `Logprob`; None if not requested.
        context_logits: Tensor of shape [tokens, vocabulary]; None if not requested.
        finish_reason: Reason for the end; None while it runs.
        ttft_s: Seconds from submission to the first token; None before it.
        latency_s: Seconds from submission to now.
    """

    text: str
    token_ids: list[int]
    logprobs: list[Any] | None
    cumulative_logprob: float | None
    prompt_logprobs: Sequence[Any] | None
    context_logits: Any
    finish_reason: str | None
    ended: bool
    counts: TokenCounts
    prompt_len: int
    request_id: str
    ttft_s: float | None
    latency_s: float

    def fill(self, task: GenerationTask) -> None:
        task.output_str = self.text
        task.output_tokens = list(self.token_ids)
        task.finish_reason = self.finish_reason
        if self.logprobs:
            task.logprobs = self.logprobs
            total = self._total()
            if total is not None:
                task.customized_result_fields["cumulative_logprob"] = total
        if task.return_context_logits:
            task.context_logits = self.context_logits
        if hasattr(task, "ttft_s"):  # missing in upstream's 1.2
            task.ttft_s, task.latency_s = self.ttft_s, self.latency_s
            task.usage_prompt_tokens, task.usage_completion_tokens = self.prompt_len, len(self.token_ids)
            task.request_id = self.request_id
        note(task, counts=self.counts)

    def _total(self) -> float | None:
        """Log-probability of the whole output; None if the release reports only the likeliest tokens."""
        if self.cumulative_logprob is not None:
            return float(self.cumulative_logprob)
        steps = list(zip(self.token_ids, self.logprobs or (), strict=False))
        if not all(token in step for token, step in steps):
            return None
        return float(sum(step[token].logprob for token, step in steps))


class Call:
    """Reads each report of the engine as soon as it arrives, so reports do not pile up.

    It may be created anywhere. Its methods run on the loop of its LLM; its attributes may be read from any thread.

    Args:
        submit: Sends the request and returns TensorRT-LLM's result object; called by the first wait.
        timeout: Seconds from submission within which the request must end; None waits forever. `wait_for` is not used,
            since before Python 3.12 it loses a cancellation that coincides with a token.
        is_piece: True if its budget is only part of the task's, so the request's end is a pause.
        count: Called with the number of tokens of each report.
        stops: Stop strings and end ids, at which the request is aborted.

    Attributes:
        ended: True if the request has ended, for any reason.
        may_run_to: Number of tokens at which the request ends with reason `PAUSED`, since the engine cannot pause it.
        queue_seconds: Time in the engine's queue before it was scheduled.
    """

    def __init__(
        self,
        submit: Callable[[], Any],
        prompt_len: int,
        timeout: float | None,
        is_piece: bool = False,
        count: Callable[[int], object] = int,
        stops: IdStops | None = None,
    ) -> None:
        self.ended = False
        self.may_run_to = NEVER
        self.queue_seconds = 0.0
        self._submit = submit
        self._prompt_len = prompt_len
        self._timeout = timeout
        self._is_piece = is_piece
        self._count = count
        self._num_counted = 0
        self._stops = stops
        self._stop_end: int | None = None  # tokens up to the one that completes a stop string
        self._result: Any = None
        self._started = 0.0
        self._first_token_at: float | None = None
        self._error: EngineError | None = None
        self._moved = asyncio.Event()
        self._given_up = False
        self._timer: asyncio.TimerHandle | None = None
        self._pump: asyncio.Task[None] | None = None

    @property
    def counts(self) -> TokenCounts:
        """Cost of the request; 0 if the engine never ran it."""
        if self._result is None or (not self._num_tokens and not self._result.finished):
            return TokenCounts()
        num_reused = min(getattr(self._result, "cached_tokens", 0) or 0, self._prompt_len)
        return TokenCounts(self._num_tokens, self._prompt_len - num_reused, num_reused)

    async def wait(self, num_tokens: int = NEVER) -> RequestProgress:
        """Wait until the request has that many tokens or has ended; a cancelled wait aborts it.

        Raises:
            EngineError: The engine refused the request, the request failed or took too long, or the engine ended it
                early.
        """
        if self._result is None and not self.ended:
            self._start()
        try:
            while not self.ended and self._num_tokens < num_tokens:
                self._moved.clear()
                await self._moved.wait()
        except asyncio.CancelledError:
            self._give_up()
            raise
        if self._error is not None:
            raise self._error
        reason = self._output.finish_reason
        if self.ended and not self._given_up and self._stop_end is None and reason not in (None, "stop", "length"):
            raise EngineError(f"TensorRT-LLM ended a request early, with finish_reason {reason!r}")
        return self._progress()

    async def abort(self, error: EngineError | None = None) -> RequestProgress | None:
        """Stop the engine's work on the request and return its progress; None if nothing was submitted.

        Args:
            error: Error for those who wait for it; None ends the request without an error.
        """
        self._give_up(error)
        return None if self._result is None else self._progress()

    @property
    def _output(self) -> Any:
        return self._result.outputs[0]

    @property
    def _num_tokens(self) -> int:
        return len(self._output.token_ids or ())

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._started = loop.time()
        try:
            self._result = self._submit()
        except Exception as error:  # the engine refused it at once
            self._end(EngineError(f"TensorRT-LLM refused a request: {type(error).__name__}: {error}"), error)
            return
        self._pump = loop.create_task(self._take_in())
        if self._timeout is not None:
            self._timer = loop.call_later(self._timeout, self._expire, self._timeout)

    def _give_up(self, error: EngineError | None = None) -> None:
        if self._result is not None and not self._result.finished:
            self._stop_engine()
        if self._pump is not None:
            self._pump.cancel()
        self._end(error)

    def _stop_engine(self) -> None:
        try:
            self._result.abort()
        except Exception:  # the LLM was shut down and its executor is gone
            _log.debug("a request cannot be aborted any more", exc_info=True)

    def _expire(self, timeout: float) -> None:
        self._give_up(
            EngineError(
                f"TensorRT-LLM did not end a request of {self._prompt_len} prompt tokens within request_timeout "
                f"({timeout} s), in which it sent {self._num_tokens} tokens: raise request_timeout, or lower max_tokens"
            )
        )

    def _progress(self) -> RequestProgress:
        output, result = self._output, self._result
        token_ids = list(output.token_ids or ())[: self._stop_end]
        is_stopped = self._stop_end is not None
        reason = "stop" if is_stopped else output.finish_reason if self.ended else None
        if not is_stopped and (self._given_up or (self._is_piece and reason == "length")):
            reason = PAUSED
        now = asyncio.get_running_loop().time()
        return RequestProgress(
            text=output.text if self._stops is None else self._stops.text(token_ids, self.ended),
            token_ids=token_ids,
            # The engine cuts off the id of a stop token, but not its entry.
            logprobs=list(output.logprobs)[: len(token_ids)] if output.logprobs else None,
            cumulative_logprob=None if is_stopped else output.cumulative_logprob,
            prompt_logprobs=output.prompt_logprobs,
            context_logits=result.context_logits,
            finish_reason=reason,
            ended=self.ended,
            counts=self.counts,
            prompt_len=self._prompt_len,
            request_id=str(result.request_id),
            ttft_s=None if self._first_token_at is None else self._first_token_at - self._started,
            latency_s=now - self._started,
        )

    async def _take_in(self) -> None:
        try:
            async for _ in self._result:
                num_new = self._num_tokens - self._num_counted
                self._count(num_new)
                self._num_counted = self._num_tokens
                if self._stops is not None and num_new > 0:
                    self._stop_end = self._stops.feed(self._output.token_ids, num_new)
                if self._first_token_at is None and self._num_tokens:
                    self._first_token_at = asyncio.get_running_loop().time()
                if self._stop_end is not None:
                    if not self._result.finished:
                        self._stop_engine()
                    break
                may_go_on = self._is_piece or self._num_tokens < self.may_run_to
                if not may_go_on and not self._result.finished:
                    self._given_up = True
                    self._stop_engine()
                    break
                self._moved.set()
        except Exception as error:  # an engine error of one request
            self._end(EngineError(f"TensorRT-LLM failed a request: {type(error).__name__}: {error}"), error)
        else:
            metrics: Mapping[Any, float] = getattr(self._result, "metrics_dict", None) or {}
            self.queue_seconds = sum(s for name, s in metrics.items() if getattr(name, "value", name) == _QUEUE_TIME)
            self._end()

    def _end(self, error: EngineError | None = None, cause: Exception | None = None) -> None:
        if not self.ended and error is not None:
            error.__cause__ = cause
            self._error = error
        if self._timer is not None:
            self._timer.cancel()
        self.ended = True
        self._moved.set()
