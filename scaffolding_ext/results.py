"""What a request gives back: a handle to wait for, await, stream and cancel, from any thread or loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Any

from scaffolding_ext.protocol import ScaffoldingOutput

if TYPE_CHECKING:
    from scaffolding_ext.program import Program


class Completion(ScaffoldingOutput):
    """A request's output with what its controller decided.

    Attributes:
        text: The completion, never the prompt.
        token_ids: Its token ids, where the worker gave them.
        answer: The extracted answer, or None.
        exit_reason: Why the controller stopped, e.g. `"end"`, `"length"`, `"certain"`; None if it does not say.
    """

    def __init__(
        self, text: str | None, token_ids: list[int] | None, answer: str | None = None, exit_reason: str | None = None
    ) -> None:
        super().__init__(text, token_ids)
        self.answer = answer
        self.exit_reason = exit_reason


class ScaffoldingResult:
    """One request in flight or ended.

    Wait with `result()`, with `await`, or stream with `async for`: each step yields this object with `outputs` brought
    up to date. A failed request raises its error in all three.

    Attributes:
        program: Ledger and trace, growing while the request runs.
        task_collections: The controller's task collections, once the request has ended.
    """

    def __init__(self, program: Program, cancel: Callable[[], None]) -> None:
        self.program = program
        self.task_collections: dict[str, Any] | None = None
        self._cancel = cancel
        self._future: Future[ScaffoldingOutput] = Future()
        self._partial: ScaffoldingOutput | None = None
        self._stream: deque[ScaffoldingOutput] | None = None
        self._wakers: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    @property
    def id(self) -> str:
        """The program's id."""
        return self.program.id

    @property
    def finished(self) -> bool:
        """Whether the request has ended, well or not."""
        return self._future.done()

    @property
    def outputs(self) -> list[ScaffoldingOutput]:
        """The output in a list of one, as upstream has it; while streaming the part so far, if any."""
        if self._future.done() and not self._future.exception():
            return [self._future.result()]
        return [] if self._partial is None else [self._partial]

    @property
    def answer(self) -> str | None:
        """The extracted answer, where the controller gives one."""
        return getattr(self.outputs[0], "answer", None) if self.finished and self.outputs else None

    @property
    def exit_reason(self) -> str | None:
        """Why the controller stopped, where it says so."""
        return getattr(self.outputs[0], "exit_reason", None) if self.finished and self.outputs else None

    def cancel(self) -> None:
        """Stop the request; whoever waits for it gets a RequestCancelledError. Does nothing once it has ended."""
        self._cancel()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end and return the request's error, or None."""
        return self._future.exception(timeout)

    def result(self, timeout: float | None = None) -> ScaffoldingResult:
        """Wait for the end.

        Args:
            timeout: Seconds to wait; the request itself goes on when they have passed.

        Raises:
            TimeoutError: The request has not ended in that time.
            RequestError: The request failed.
        """
        try:
            self._future.result(timeout)
        except FutureTimeoutError as error:
            if self._future.done():
                raise
            raise TimeoutError(
                f"request {self.id} has not ended within {timeout} s; it goes on: cancel() stops it"
            ) from error
        return self

    async def aresult(self) -> ScaffoldingResult:
        """Wait for the end without blocking the running loop. Cancelling the wait does not cancel the request."""
        await asyncio.shield(asyncio.wrap_future(self._future))
        return self

    def __await__(self) -> Generator[Any, None, ScaffoldingResult]:
        return self.aresult().__await__()

    async def __aiter__(self) -> AsyncIterator[ScaffoldingResult]:
        with self._lock:
            if self._stream is None:
                self._stream = deque([] if self._partial is None else [self._partial])
        while True:
            if self._stream:
                self._partial = self._stream.popleft()
                yield self
            elif self._future.done():
                self._future.result()
                yield self
                return
            else:
                await self._changed()

    async def _changed(self) -> None:
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        with self._lock:
            if self._stream or self._future.done():
                return
            self._wakers.append(lambda: loop.call_soon_threadsafe(woken.set))
        await woken.wait()

    def _wake(self) -> None:
        with self._lock:
            wakers, self._wakers = self._wakers, []
        for wake in wakers:
            try:
                wake()
            except RuntimeError:  # the waiter's loop was closed meanwhile: nobody is left to wake
                continue

    def push(self, output: ScaffoldingOutput) -> None:
        """For hosts: a part of the output, cumulative."""
        with self._lock:
            if self._stream is None:
                self._partial = output
            else:
                self._stream.append(output)
        self._wake()

    def finish(self, output: ScaffoldingOutput) -> None:
        """For hosts: the request has ended well."""
        if not self._future.done():
            self._future.set_result(output)
            self._wake()

    def fail(self, error: BaseException) -> None:
        """For hosts: the request has failed."""
        if not self._future.done():
            self._future.set_exception(error)
            self._wake()
