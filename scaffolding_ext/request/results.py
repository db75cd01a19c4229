"""A request's handle to wait for, await, stream and cancel, from any thread or loop."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from scaffolding_ext.errors import NoOutputError, RequestCancelledError
from scaffolding_ext.protocol import ScaffoldingOutput

if TYPE_CHECKING:
    from scaffolding_ext.request.audit import AuditFinding
    from scaffolding_ext.request.program import Program

_log = logging.getLogger(__name__)


@dataclass(init=False)
class Completion(ScaffoldingOutput):
    """A request's output with its controller's decisions.

    Attributes:
        answer: The extracted answer, or None.
        exit_reason: Reason for the end, e.g. `"end"`, `"length"`, `"certain"`; None if the controller gives none.
        program: The request's program, with its ledger and trace; None if a caller made this object.
        logprobs: A dict of the likeliest ids for each token, if requested and the output is one generation.
    """

    answer: str | None = None
    exit_reason: str | None = None
    program: Program | None = field(default=None, repr=False, compare=False)
    logprobs: list[Any] | None = field(default=None, repr=False, compare=False)

    def __init__(
        self,
        text: str | None,
        token_ids: list[int] | None,
        answer: str | None = None,
        exit_reason: str | None = None,
        program: Program | None = None,
        logprobs: list[Any] | None = None,
    ) -> None:
        super().__init__(text, token_ids)
        self.answer = answer
        self.exit_reason = exit_reason
        self.program = program
        self.logprobs = logprobs

    def __reduce__(self) -> tuple[type[Completion], tuple[Any, ...]]:
        """Pickle and copy all but the program, which belongs to the process that ran it."""
        return Completion, (self.text, self.token_ids, self.answer, self.exit_reason, None, self.logprobs)


def completion_of(result: Any) -> Completion:
    """Wait for a request of either host and return its completion.

    Upstream's host leaves an empty text for a failed request; a `Completion` shows that the request succeeded.

    Raises:
        RequestError: The request failed; under upstream's host NoOutputError, for any reason.
    """
    result.result()
    (output,) = result.outputs
    if isinstance(output, Completion):
        return output
    if isinstance(result, ScaffoldingResult):  # from a foreign controller
        return Completion(output.text, output.token_ids, program=result.program)
    raise NoOutputError(
        "the request ended without a Completion: either it failed (the host only prints the error), or its controller "
        "is not one of scaffolding_ext's"
    )


# Guards the registration of waiters, for a few instructions. One lock for all keeps results small: there may be
# many thousands.
_lock = threading.Lock()


class _Waker(NamedTuple):
    wake: Callable[[], object]
    only_at_end: bool


class ScaffoldingResult:
    """One request, running or ended.

    Wait with `result()`, with `await`, or stream with `async for`: each step yields this object with new `outputs`, and
    another `async for` continues from there. All three raise a failed request's error. An error that is never read is
    logged as a warning when the result is freed.

    Attributes:
        program: Ledger and trace, growing while the request runs.
        is_stopping: True while it is being ended early; its controller may then request nothing more.
    """

    __slots__ = (
        "__weakref__",
        "_error",
        "_is_error_known",
        "_output",
        "_partial",
        "_reader",
        "_unread",
        "_wakers",
        "finished",
        "is_stopping",
        "program",
        "task_collections",
    )

    def __init__(self, program: Program) -> None:
        self.program = program
        self.task_collections: dict[str, Any] | None = None
        self.finished = False
        self.is_stopping = False
        self._output: ScaffoldingOutput | None = None
        self._error: BaseException | None = None
        self._is_error_known = False
        self._partial: ScaffoldingOutput | None = None
        self._reader: weakref.ref[_Reader] | None = None
        self._unread: deque[ScaffoldingOutput] | None = None  # parts not read yet
        self._wakers: tuple[_Waker, ...] = ()

    @property
    def id(self) -> str:
        return self.program.identity.id

    @property
    def outputs(self) -> list[ScaffoldingOutput]:
        """The output in a list of one; while streaming, the part so far, if any."""
        output = self._partial
        if self._current_reader() is None:
            output = self._output or (self._unread[-1] if self._unread else self._partial)
        return [] if output is None else [output]

    @property
    def answer(self) -> str | None:
        return getattr(self._output, "answer", None)

    @property
    def exit_reason(self) -> str | None:
        return getattr(self._output, "exit_reason", None)

    @property
    def failure(self) -> BaseException | None:
        """The error that ended it, if any; reading it here does not count as handling it."""
        return self._error

    def cancel(self) -> None:
        """Stop the request: waiting for it raises RequestCancelledError. No effect after its end."""
        raise TypeError("only a host's results can be cancelled")

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end and return the request's error, or None; TimeoutError leaves the request running."""
        ended = threading.Event()
        if self._call_when_changed(ended.set) and not ended.wait(timeout):
            self._call_no_more(ended.set)
            raise TimeoutError(
                f"request {self.id} has not ended within {timeout} s and keeps running; cancel() stops it"
            )
        self._is_error_known = True
        return self._error

    def result(self, timeout: float | None = None) -> ScaffoldingResult:
        """Wait for the end; TimeoutError leaves the request running, RequestError if it failed."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self

    async def aresult(self) -> ScaffoldingResult:
        """Wait for the end without blocking the running loop. Cancelling the wait does not cancel the request."""
        await self.ended()
        return self.result()

    async def ended(self) -> None:
        await self._changed()

    async def newest(self, seen: ScaffoldingOutput | None = None) -> ScaffoldingOutput | None:
        """Wait for the newest part of the output after `seen`; None at the request's end. Not beside `async for`."""
        while not self.finished:
            part = self._partial
            if part is not None and part is not seen:
                return part
            await self._changed(lambda: self._partial is not seen)
        return None

    @property
    def is_audited(self) -> bool:
        return self.program.audit is not None and self.program.audit.over is not None

    async def audited(self) -> AuditFinding | None:
        """Wait for the end and the audit; None if the request is not audited or its audit failed."""
        await self.ended()
        return None if self.program.audit is None else await self.program.audit.ended()

    def __await__(self) -> Generator[Any, None, ScaffoldingResult]:
        return self.aresult().__await__()

    def __aiter__(self) -> AsyncIterator[ScaffoldingResult]:
        reader = _Reader(self)
        with _lock:
            self._unread = deque([*([self._partial] if self._partial else []), *(self._unread or [])])
            self._reader = weakref.ref(reader)
        self._wake()  # an older `async for` must notice the new one
        return reader

    def __reduce__(self) -> NoReturn:
        raise TypeError("a result belongs to the host that runs it: pickle or copy its outputs[0] instead")

    def __del__(self) -> None:
        error = getattr(self, "_error", None)  # None if it was never initialised
        if error is None or self._is_error_known or isinstance(error, RequestCancelledError):
            return
        _log.warning("request %s failed, and its result was never read", self.id, exc_info=error)

    def _current_reader(self) -> _Reader | None:
        return None if self._reader is None else self._reader()

    async def _changed(self, is_due: Callable[[], bool] | None = None) -> None:
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(woken.set)

        if self._call_when_changed(wake, is_due):
            try:
                await woken.wait()
            finally:
                self._call_no_more(wake)

    def _call_when_changed(self, wake: Callable[[], object], is_due: Callable[[], bool] | None = None) -> bool:
        """Register a function to call at the end or (with `is_due`) at the next part; False if that has passed."""
        with _lock:
            if self.finished or (is_due is not None and is_due()):
                return False
            self._wakers = (*self._wakers, _Waker(wake, only_at_end=is_due is None))
            return True

    def _call_no_more(self, wake: Callable[[], object]) -> None:
        with _lock:
            self._wakers = tuple(waker for waker in self._wakers if waker.wake != wake)

    def _wake(self) -> None:
        if not self._wakers:  # later waiters already see the change
            return
        with _lock:
            wakers = [waker for waker in self._wakers if self.finished or not waker.only_at_end]
            self._wakers = tuple(waker for waker in self._wakers if waker not in wakers)
        for waker in wakers:
            try:
                waker.wake()
            except RuntimeError:  # the waiter's loop has been closed
                continue

    def push(self, output: ScaffoldingOutput) -> None:
        """For hosts: add a part of the output, cumulative; one behind the end, such as of an audit, is dropped."""
        with _lock:
            if self.finished:
                return
            if self._unread is not None and self._current_reader() is not None:
                self._unread.append(output)
            else:  # no reader: the latest part includes all earlier ones
                self._partial, self._unread = output, None
        self._wake()

    def finish(self, output: ScaffoldingOutput) -> None:
        self._settle(output, None)

    def fail(self, error: BaseException) -> None:
        self._settle(None, error)

    def _settle(self, output: ScaffoldingOutput | None, error: BaseException | None) -> None:
        if self.finished:
            return
        self._output, self._error = output, error
        with _lock:
            self.finished = True
        self._wake()


class _Reader:
    """One `async for` over a result; the result keeps a weak reference to the latest."""

    __slots__ = ("__weakref__", "_has_ended", "_result")

    def __init__(self, result: ScaffoldingResult) -> None:
        self._result = result
        self._has_ended = False

    def __aiter__(self) -> _Reader:
        return self

    async def __anext__(self) -> ScaffoldingResult:
        while not self._has_ended:
            if self._result._current_reader() is not self:
                raise RuntimeError(f"another `async for` over request {self._result.id} has begun; only one at a time")
            is_last = self._result.finished  # read before the parts, which may arrive until then
            if self._result._unread:
                self._result._partial = self._result._unread.popleft()
                return self._result
            if is_last:
                self._has_ended = True
                self._result._reader = None
                return self._result.result()
            await self._result._changed(self._is_due)
        raise StopAsyncIteration

    def _is_due(self) -> bool:
        return bool(self._result._unread) or self._result._current_reader() is not self
