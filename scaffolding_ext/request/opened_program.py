"""Programs under a host that opens none: the first controller of a request opens one, and knows when it is over."""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections.abc import Callable
from typing import Any

from scaffolding_ext.protocol import ControllerGenerator, current_scope
from scaffolding_ext.request.program import Program, current_program, enter_program, leave_program


def in_program(process: Callable[[Program], ControllerGenerator]) -> ControllerGenerator:
    """Run one request in the current program. Under a host that opens no program, open one here and meter it.

    Args:
        process: Makes the request's generator for its program.

    Returns:
        A generator with the same yields and the same return value.
    """
    program = current_program()
    opened = _opened.get()
    if program is not None and (opened is None or opened.program is not program or not opened.is_over()):
        return (yield from process(program))
    opened = _Opened()
    _opened.set(opened)
    opened.close_at_end()
    enter_program(opened.program)
    try:
        return (yield from opened.program.meter.watch(process(opened.program)))
    finally:
        opened.has_returned = True
        if current_program() is opened.program:  # a generator that is freed late may end in another's context
            leave_program()


class _Opened:
    """A program that `in_program` opened because the host opens none.

    Such a host may start a request in the context of the one that made room for it, where the old program is still set.
    """

    def __init__(self) -> None:
        self.program = Program()
        self.has_returned = False
        self._scope = current_scope.get()
        task = _running_task()
        self._task = None if task is None else weakref.ref(task)

    def close_at_end(self) -> None:
        """Close the program when its request's task is done, for hosts that tell nobody when a scope ends."""
        task = None if self._task is None else self._task()
        if self._scope is None and task is not None:
            task.add_done_callback(lambda _: self.program.close())

    def is_over(self) -> bool:
        """Whether the program's request has ended; one that failed leaves its generator suspended."""
        if self.has_returned:
            return True
        scope = current_scope.get()
        if scope is not None and self._scope is not None:
            return scope.request_id != self._scope.request_id
        task = None if self._task is None else self._task()  # a host without scopes
        return self._task is not None and (task is None or task.done())


_opened: contextvars.ContextVar[_Opened | None] = contextvars.ContextVar("opened", default=None)


def _running_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # driven outside of an event loop
        return None
