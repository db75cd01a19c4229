"""What a request gives back: a handle to wait for, await, stream and cancel, from any thread or loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple

from scaffolding_ext.protocol import ScaffoldingOutput

if TYPE_CHECKING:
    from scaffolding_ext.errors import RequestError
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


# Guards the registration of waiters of every result: held for a few instructions, and one lock for all keeps a result,
# of which there may be many thousands, down to a handful of objects.
_lock = threading.Lock()


class _Waker(NamedTuple):
    """Something to call when a result changes, or only when it ends."""

    wake: Callable[[], object]
    only_at_end: bool


class ScaffoldingResult:
    """One request in flight or ended.

    Wait with `result()`, with `await`, or stream with `async for`: each step yields this object with `outputs` brought
    up to date. A failed request raises its error in all three.

    Attributes:
        program: Ledger and trace, growing while the request runs.
        task_collections: The controller's task collections, once the request has ended.
    """

    __slots__ = (
        "__weakref__",
        "_error",
        "_output",
        "_partial",
        "_stream",
        "_wakers",
        "finished",
        "program",
        "task_collections",
    )

    def __init__(self, program: Program) -> None:
        self.program = program
        self.task_collections: dict[str, Any] | None = None
        self.finished = False
        self._output: ScaffoldingOutput | None = None
        self._error: BaseException | None = None
        self._partial: ScaffoldingOutput | None = None
        self._stream: deque[ScaffoldingOutput] | None = None
        self._wakers: tuple[_Waker, ...] = ()

    @property
    def id(self) -> str:
        """The program's id."""
        return self.program.id

    @property
    def outputs(self) -> list[ScaffoldingOutput]:
        """The output in a list of one, as upstream has it; while streaming the part so far, if any."""
        output = self._partial if self._stream is not None else self._output or self._partial
        return [] if output is None else [output]

    @property
    def answer(self) -> str | None:
        """The extracted answer, where the controller gives one."""
        return getattr(self._output, "answer", None)

    @property
    def exit_reason(self) -> str | None:
        """Why the controller stopped, where it says so."""
        return getattr(self._output, "exit_reason", None)

    def cancel(self) -> None:
        """Stop the request; whoever waits for it gets a RequestCancelledError. Does nothing once it has ended."""
        raise TypeError("only a host's results can be cancelled")

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end and return the request's error, or None.

        Raises:
            TimeoutError: The request has not ended in that time; it goes on.
        """
        ended = threading.Event()
        if self._call_when_changed(ended.set, only_at_end=True) and not ended.wait(timeout):
            self._call_no_more(ended.set)
            raise TimeoutError(f"request {self.id} has not ended within {timeout} s; it goes on: cancel() stops it")
        return self._error

    def result(self, timeout: float | None = None) -> ScaffoldingResult:
        """Wait for the end.

        Args:
            timeout: Seconds to wait; the request itself goes on when they have passed.

        Raises:
            TimeoutError: The request has not ended in that time.
            RequestError: The request failed.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self

    async def aresult(self) -> ScaffoldingResult:
        """Wait for the end without blocking the running loop. Cancelling the wait does not cancel the request."""
        await self._changed(only_at_end=True)
        return self.result()

    def __await__(self) -> Generator[Any, None, ScaffoldingResult]:
        return self.aresult().__await__()

    async def __aiter__(self) -> AsyncIterator[ScaffoldingResult]:
        with _lock:
            if self._stream is not None:
                raise RuntimeError(f"request {self.id} is being streamed already; only one `async for` at a time")
            parts = self._stream = deque([] if self._partial is None else [self._partial])
        try:
            while parts or not self.finished:
                if parts:
                    self._partial = parts.popleft()
                    yield self
                else:
                    await self._changed(only_at_end=False)
        finally:
            self._stream = None
        yield self.result()

    async def _changed(self, only_at_end: bool) -> None:
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(woken.set)

        if self._call_when_changed(wake, only_at_end):
            try:
                await woken.wait()
            finally:
                self._call_no_more(wake)

    def _call_when_changed(self, waker: Callable[[], object], only_at_end: bool) -> bool:
        """Have the waker called once, at the end or at the next part before it; False if there is no need to wait."""
        with _lock:
            if self.finished or (self._stream and not only_at_end):
                return False
            self._wakers = (*self._wakers, _Waker(waker, only_at_end))
            return True

    def _call_no_more(self, wake: Callable[[], object]) -> None:
        with _lock:
            self._wakers = tuple(waker for waker in self._wakers if waker.wake != wake)

    def _wake(self) -> None:
        if not self._wakers:  # only a waiter that sees the change already could register from here on
            return
        with _lock:
            wakers = [waker for waker in self._wakers if self.finished or not waker.only_at_end]
            self._wakers = tuple(waker for waker in self._wakers if waker not in wakers)
        for waker in wakers:
            try:
                waker.wake()
            except RuntimeError:  # the waiter's loop was closed meanwhile: nobody is left to wake
                continue

    def push(self, output: ScaffoldingOutput) -> None:
        """For hosts: a part of the output, cumulative."""
        with _lock:
            if self._stream is None:
                self._partial = output
            else:
                self._stream.append(output)
        self._wake()

    def finish(self, output: ScaffoldingOutput) -> None:
        """For hosts: the request has ended well."""
        self._settle(output, None)

    def fail(self, error: BaseException) -> None:
        """For hosts: the request has failed."""
        self._settle(None, error)

    def _settle(self, output: ScaffoldingOutput | None, error: BaseException | None) -> None:
        if self.finished:
            return
        self._output, self._error = output, error
        with _lock:
            self.finished = True
        self._wake()


class Request(ScaffoldingResult):
    """For hosts: a result with what is needed to run it. One object for both, since there may be many thousands.

    Attributes:
        prompt: The user's prompt.
        kwargs: For the controller's `generate`.
        timeout: Seconds from submission, or None.
        runner: The asyncio task, while it runs.
        abort_error: Why it is being stopped.
        timers: What must be cancelled at its end.
    """

    __slots__ = ("_on_cancel", "abort_error", "kwargs", "prompt", "runner", "timeout", "timers")

    def __init__(
        self,
        program: Program,
        prompt: str,
        kwargs: dict[str, Any],
        timeout: float | None,
        on_cancel: Callable[[Request], None],
    ) -> None:
        super().__init__(program)
        self.prompt = prompt
        self.kwargs = kwargs
        self.timeout = timeout
        self.runner: asyncio.Task[None] | None = None
        self.abort_error: RequestError | None = None
        self.timers: tuple[asyncio.TimerHandle, ...] = ()
        self._on_cancel = on_cancel

    def cancel(self) -> None:
        self._on_cancel(self)
