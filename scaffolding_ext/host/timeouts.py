"""Ends a request before its controller does: at its time-out, at `cancel`, or at the host's shutdown.

All of it happens on the host's loop. The request's asyncio task is cancelled, which has the workers told; a worker that
does not react in time keeps its row, but not the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from scaffolding_ext.errors import RequestTimeoutError

if TYPE_CHECKING:
    from scaffolding_ext.errors import RequestError
    from scaffolding_ext.host.request import Request

GRACE_SECONDS = 5.0  # how long a worker may take to react to cancellation before the caller is told anyway


def start_timeout(request: Request) -> None:
    """Have the request aborted when its time is over, if it has a time-out."""
    if request.timeout is not None:
        error = RequestTimeoutError(f"request {request.id} did not end within {request.timeout} s")
        request.timers = (_later(request.timeout, lambda: abort(request, error)),)


def abort(request: Request, error: RequestError) -> None:
    """End a request with an error: at once while it waits, else when its workers have reacted or the grace is over."""
    if request.finished or request.abort_error is not None:
        return
    request.abort_error = error
    if request.runner is None:
        request.fail(error)
        let_go(request)
        return
    request.runner.cancel()
    request.timers += (_later(GRACE_SECONDS, lambda: request.fail(error)),)


def let_go(request: Request) -> None:
    """Free what an ended request held."""
    for timer in request.timers:
        timer.cancel()
    request.timers = ()
    request.runner = None  # else request and task would keep each other from being freed at once
    request.program.close()


def _later(seconds: float, action: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(seconds, action)
