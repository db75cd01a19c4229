"""Pass a controller's work through, with a look at the tasks of each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from scaffolding_ext.protocol import ControllerGenerator, ParallelProcess, StreamGenerationTask, close_generator

Visit = Callable[[Any], None]


class Watch:
    """Looks at every step of the work that `relay` passes through.

    Attributes:
        clock: Seconds from any origin; None leaves all times at 0.
        is_closed: Once True, the work ends at its next step, and its open streams are cancelled.
    """

    __slots__ = ("clock", "is_closed")

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.clock = clock
        self.is_closed = False

    def ask(self, work: Any) -> float:
        return 0.0 if self.clock is None else self.clock()

    def count(self, work: Any, began: float) -> None:
        """Look at a step that is done, has failed, or was dropped; `began` is the time of its request."""


def relay(work: Iterable[Any], before: Visit | None = None, watch: Watch | None = None) -> ControllerGenerator:
    """Pass a controller's work through, branches included; the work's generator is closed with this one.

    Args:
        before: Called with each step on its way to the host; branches are visited step by step.
        watch: Looks at each finished step, and may end the work, which then returns None.
    """
    inner = iter(work)
    streams: dict[int, StreamGenerationTask] = {}
    is_over = False
    try:
        while watch is None or not watch.is_closed:
            try:
                step = next(inner)
            except StopIteration as end:
                is_over = True
                return end.value
            if isinstance(step, ParallelProcess):
                step.sub_gens = [relay(branch, before, watch) for branch in step.sub_gens]
                yield step
                continue
            if before is not None:
                before(step)
            if watch is None:
                yield step
                continue
            for task in step if isinstance(step, (list, tuple)) else ():
                if isinstance(task, StreamGenerationTask):
                    streams[id(task)] = task
            began = watch.ask(step)
            try:
                yield step
            finally:
                watch.count(step, began)
    finally:
        if not is_over:  # a returned generator need not be closed
            close_generator(inner)
    still_open = [task for task in streams.values() if not task.end_flag] if streams else []
    for task in still_open:
        task.cancel_flag = True
    if still_open and watch is not None:
        began = watch.ask(still_open)
        try:
            yield still_open
        finally:
            watch.count(still_open, began)
    return None
