"""One request to TensorRT-LLM's LLM API, from submission to end, and the event loop of its LLM.

TensorRT-LLM wakes all readers of a batch on the event loop of the batch's first request. If requests of one LLM come
from two loops, readers on the other loop never wake.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from scaffolding_ext.errors import EngineError
from scaffolding_ext.protocol.meta import PAUSED, TokenCounts
from scaffolding_ext.request.program import current_program
from scaffolding_ext.workers.shared.id_stops import IdStops
from scaffolding_ext.workers.shared.own_loop import OwnLoop
from scaffolding_ext.workers.shared.streaming import NEVER, Answer, Stream

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


class Call(Stream):
    """Reads each report of the engine as soon as it arrives, so reports do not pile up.

    It may be used from any loop; private methods run on the loop of its LLM.

    Args:
        loop: The loop of its LLM.
        calls: Holds it until it is closed.
        submit: Sends the request and returns TensorRT-LLM's result object; called by the first wait.
        timeout: Seconds from submission within which the request must end; None waits forever. `wait_for` is not used,
            since before Python 3.12 it loses a cancellation that coincides with a token.
        is_piece: True if its budget is only part of the task's, so the request's end is a pause.
        stops: Stop strings and end ids, at which the request is aborted.

    Attributes:
        ended: True if the request has ended, for any reason.
        result: TensorRT-LLM's result object, once it is submitted.
    """

    def __init__(
        self,
        loop: LlmLoop,
        calls: set[Call],
        submit: Callable[[], Any],
        prompt_len: int,
        timeout: float | None,
        is_piece: bool = False,
        stops: IdStops | None = None,
    ) -> None:
        self.ended = False
        self.result: Any = None
        self._loop, self._calls = loop, calls
        calls.add(self)
        self._may_run_to = NEVER
        self._queue_seconds = 0.0
        self._submit = submit
        self._prompt_len = prompt_len
        self._timeout = timeout
        self._is_piece = is_piece
        self._num_fed = self._awaited = 0
        self._stops = stops
        self._stop_end: int | None = None  # tokens up to the one that completes a stop string
        self._started = 0.0
        self._first_token_at: float | None = None
        self._error: EngineError | None = None
        self._moved = asyncio.Event()
        self._given_up = self._is_aborted = False
        self._timer: asyncio.TimerHandle | None = None
        self._pump: asyncio.Task[None] | None = None

    @property
    def counts(self) -> TokenCounts:
        """Cost of the request; 0 if the engine never ran it."""
        if self.result is None or (not self._num_tokens and not self.result.finished):
            return TokenCounts()
        num_reused = min(getattr(self.result, "cached_tokens", 0) or 0, self._prompt_len)
        return TokenCounts(self._num_tokens, self._prompt_len - num_reused, num_reused)

    async def wait(self, num_tokens: int) -> Answer:
        """Wait until the request has that many tokens or has ended; a cancelled wait aborts it.

        Raises:
            EngineError: The engine refused the request, the request failed or took too long, or the engine ended it
                early; or the worker has been shut down.
        """
        return await self._loop.run(self._wait, num_tokens)

    async def cancel(self) -> Answer | None:
        """Stop the engine's work on the request; None if nothing was submitted, or after shutdown."""
        return None if self._loop.is_closed else await self._loop.run(self._abort)

    async def close(self) -> None:
        """Forget the request; the engine stops working on an unfinished one. Its time in the queue is recorded."""
        self._calls.discard(self)
        if not self.ended:
            with contextlib.suppress(EngineError):  # after shutdown nothing runs any more
                await self._loop.run(self._abort)
        program, seconds = current_program(), self._queue_seconds
        self._queue_seconds = 0.0
        if program is not None:
            program.ledger.queue_seconds += seconds

    def let_run_to(self, num_tokens: int) -> None:
        self._may_run_to = num_tokens

    async def end(self, error: EngineError) -> None:
        """Abort the request, and give those who wait for it an error; on the loop of its LLM."""
        self._give_up(error)

    async def _wait(self, num_tokens: int) -> Answer:
        if self.result is None and not self.ended:
            self._start()
        self._awaited = num_tokens
        try:
            while not self.ended and self._num_tokens < num_tokens:
                self._moved.clear()
                await self._moved.wait()
        except asyncio.CancelledError:
            self._give_up()
            raise
        if self._error is not None:
            raise self._error
        reason = self.output.finish_reason
        if self.ended and not self._given_up and self._stop_end is None and reason not in (None, "stop", "length"):
            raise EngineError(f"TensorRT-LLM ended a request early, with finish_reason {reason!r}")
        return self._answer()

    async def _abort(self) -> Answer | None:
        self._is_aborted = self._is_aborted or not self.ended
        self._give_up()
        return None if self.result is None else self._answer()

    @property
    def output(self) -> Any:
        """TensorRT-LLM's output of the request, once it is submitted."""
        return self.result.outputs[0]

    @property
    def _num_tokens(self) -> int:
        return len(self.output.token_ids or ())

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._started = loop.time()
        try:
            self.result = self._submit()
        except Exception as error:  # the engine refused it at once
            self._end(EngineError(f"TensorRT-LLM refused a request: {type(error).__name__}: {error}"), error)
            return
        self._pump = loop.create_task(self._take_in())
        if self._timeout is not None:
            self._timer = loop.call_later(self._timeout, self._expire, self._timeout)

    def _give_up(self, error: EngineError | None = None) -> None:
        if self.result is not None and not self.result.finished:
            self._stop_engine()
        if self._pump is not None:
            self._pump.cancel()
        self._end(error)

    def _stop_engine(self) -> None:
        try:
            self.result.abort()
        except Exception:  # the LLM was shut down and its executor is gone
            _log.debug("a request cannot be aborted any more", exc_info=True)

    def _expire(self, timeout: float) -> None:
        self._give_up(
            EngineError(
                f"TensorRT-LLM did not end a request of {self._prompt_len} prompt tokens within request_timeout "
                f"({timeout} s), in which it sent {self._num_tokens} tokens: raise request_timeout, or lower max_tokens"
            )
        )

    def _answer(self) -> Answer:
        output = self.output
        token_ids = list(output.token_ids or ())[: self._stop_end]
        is_stopped = self._stop_end is not None
        reason = "stop" if is_stopped else output.finish_reason if self.ended else None
        if not is_stopped and (self._given_up or (self._is_piece and reason == "length")):
            reason = PAUSED
        if self.ended and reason is None:
            reason = "cancelled" if self._is_aborted else "stop"
        return Answer(
            text=output.text if self._stops is None else self._stops.text(token_ids, self.ended),
            token_ids=token_ids,
            finish_reason=reason,
            counts=self.counts,
            # The engine cuts off the id of a stop token, but not its entry.
            logprobs=list(output.logprobs)[: len(token_ids)] if output.logprobs else None,
            context_logits=self.result.context_logits,
            ttft_s=None if self._first_token_at is None else self._first_token_at - self._started,
            latency_s=asyncio.get_running_loop().time() - self._started,
        )

    async def _take_in(self) -> None:
        try:
            async for _ in self.result:
                num_new, self._num_fed = self._num_tokens - self._num_fed, self._num_tokens
                if self._stops is not None and num_new > 0:
                    self._stop_end = self._stops.feed(self.output.token_ids, num_new)
                if self._first_token_at is None and self._num_fed:
                    self._first_token_at = asyncio.get_running_loop().time()
                if self._stop_end is not None:
                    if not self.result.finished:
                        self._stop_engine()
                    break
                may_go_on = self._is_piece or self._num_fed < self._may_run_to
                if not may_go_on and not self.result.finished:
                    self._given_up = True
                    self._stop_engine()
                    break
                if self._num_fed >= self._awaited:  # its reader is not woken for each token
                    self._moved.set()
        except Exception as error:  # an engine error of one request
            self._end(EngineError(f"TensorRT-LLM failed a request: {type(error).__name__}: {error}"), error)
        else:
            metrics: Mapping[Any, float] = getattr(self.result, "metrics_dict", None) or {}
            self._queue_seconds = sum(s for name, s in metrics.items() if getattr(name, "value", name) == _QUEUE_TIME)
            failed = getattr(self.result, "error", None)  # the newest releases end a result without raising it
            self._end(EngineError(f"TensorRT-LLM failed a request: {failed}") if failed else None)

    def _end(self, error: EngineError | None = None, cause: Exception | None = None) -> None:
        if not self.ended and error is not None:
            error.__cause__ = cause
            self._error = error
        if self._timer is not None:
            self._timer.cancel()
        self.ended = True
        self._moved.set()
