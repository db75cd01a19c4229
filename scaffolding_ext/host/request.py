"""A request in the host: the caller's result, its run, and its early end.

A request ends early at its time-out, at `cancel`, or at the host's shutdown, always on the host's loop. Its asyncio
task is cancelled, so its workers are notified. If a worker does not react in time, the caller is told anyway.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any

from scaffolding_ext.errors import (
    NoOutputError,
    RequestCancelledError,
    RequestError,
    RequestTimeoutError,
    ShutdownError,
)
from scaffolding_ext.host import dispatch, twin
from scaffolding_ext.protocol import Controller, ExecutionScope, ScaffoldingOutput
from scaffolding_ext.protocol.meta import Purpose
from scaffolding_ext.request.audit import Audit, AuditFinding
from scaffolding_ext.request.program import enter_program
from scaffolding_ext.request.results import ScaffoldingResult

if TYPE_CHECKING:
    from scaffolding_ext.request.program import Program

_log = logging.getLogger(__name__)


class Request(ScaffoldingResult):
    """Result and request in one object, because there may be many thousands of them.

    Attributes:
        kwargs: For the controller's `generate`.
        timeout: Seconds from submission, or None.
        runner: The asyncio task, while it runs.
        abort_error: Reason for its early end.
    """

    __slots__ = ("_host_thread", "_loop", "abort_error", "kwargs", "prompt", "runner", "timeout", "timers")

    def __init__(
        self,
        program: Program,
        prompt: str,
        kwargs: dict[str, Any],
        timeout: float | None,
        loop: asyncio.AbstractEventLoop,
        host_thread: threading.Thread,
    ) -> None:
        super().__init__(program)
        self.prompt = prompt
        self.kwargs = kwargs
        self.timeout = timeout
        self.runner: asyncio.Task[None] | None = None
        self.abort_error: RequestError | None = None
        self.timers: list[asyncio.TimerHandle] = []
        self._loop = loop
        self._host_thread = host_thread

    def cancel(self) -> None:
        if self.finished:
            return
        try:
            self._loop.call_soon_threadsafe(abort, self, RequestCancelledError(f"request {self.id} was cancelled"))
        except RuntimeError:  # the loop is closed, so every request has ended
            return

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end and return the request's error, or None.

        Raises:
            TimeoutError: The request has not ended in that time and keeps running.
            RuntimeError: Called on the host's thread, which would block the request.
        """
        if not self.finished and threading.current_thread() is self._host_thread:
            raise RuntimeError(f"waiting for request {self.id} would block the host's own thread; await it there")
        return super().exception(timeout)

    async def run(self, prototype: Controller, dispatcher: dispatch.Dispatcher) -> None:
        """Run a clone of the controller to its end, and keep its output or error."""
        enter_program(self.program)
        self.program.caller.show = self.push
        self.program.can_roll = True
        audit = self.program.audit = Audit()
        try:
            controller = clone_of(prototype)
            other = twin.twin_of(controller, self.kwargs, self.program)
            if other is not None:
                dispatcher = twin.RecordingDispatcher(dispatcher)
            work = controller.generate(self.prompt, **self.kwargs)
            output = await dispatcher.drive(self.program.meter.watch(work), self, ExecutionScope(self.id))
            self.task_collections = getattr(controller, "task_collections", None)
            if not isinstance(output, ScaffoldingOutput):
                name = type(controller).__name__
                raise NoOutputError(
                    f"{name}.generate returned {type(output).__name__}; it must return a ScaffoldingOutput"
                )
            if other is None or not isinstance(dispatcher, twin.RecordingDispatcher) or not twin.is_comparable(output):
                self.finish(output)
                return
            audit.begin()
            self.finish(output)
            again = twin.RecordingDispatcher(dispatcher, dispatcher.kept)
            await self._run_twin(twin.compared(controller, other, output, self.prompt, self.kwargs), audit, again)
        except Exception as error:
            self.fail(error)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a KeyboardInterrupt stops the loop and the host's callback
            self.fail(error)
            raise

    async def _run_twin(self, work: Any, audit: Audit, dispatcher: twin.RecordingDispatcher) -> None:
        """Run an audit to its end after the answer; a failure is recorded in the trace and the log."""
        program, behind = self.program, self.program.twin()
        program.caller.show = None  # the caller has the answer
        enter_program(behind)
        finding: AuditFinding | None = None
        failure: str | None = "the host was shut down"
        try:
            finding = await dispatcher.drive(behind.meter.watch(work), self, ExecutionScope(self.id))
            failure = None
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            _log.warning("the audit of request %s failed: %s", self.id, failure)
        finally:
            computed = behind.ledger.total.minus(dispatcher.reused)
            if any(computed):
                program.ledger.add(Purpose.AUDIT, *computed)
            figures = {"failed": failure} if finding is None else finding._asdict()
            program.trace.record("audit", **figures)
            audit.end(finding)


def clone_of(prototype: Controller) -> Controller:
    """Return a clone of the controller; RequestError if its `clone` fails."""
    try:
        return prototype.clone()
    except Exception as error:
        raise RequestError(f"{type(prototype).__name__}.clone() failed: {type(error).__name__}: {error}") from error


def start_timeout(request: Request) -> None:
    if request.timeout is not None:
        error = RequestTimeoutError(f"request {request.id} did not end within {request.timeout} s")
        request.timers.append(asyncio.get_running_loop().call_later(request.timeout, abort, request, error))


def abort(request: Request, error: RequestError) -> None:
    """End a request with an error: at once if it waits, else when its workers have reacted or the grace is over."""
    if request.finished or request.abort_error is not None:
        if request.finished and request.runner is not None and isinstance(error, ShutdownError):
            request.runner.cancel()  # its audit
        return
    request.abort_error = error
    request.is_stopping = True
    if request.runner is None:
        request.fail(error)
        release(request)
        return
    request.runner.cancel()
    request.timers.append(asyncio.get_running_loop().call_later(dispatch.GRACE_SECONDS, request.fail, error))


def release(request: Request) -> None:
    for timer in request.timers:
        timer.cancel()
    request.runner = None  # breaks the reference cycle of request and task
    try:
        request.program.close()
    except Exception as error:  # e.g. of a learning policy; other requests continue
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"an end-of-request callback of {request.id} failed", "exception": error}
        )
