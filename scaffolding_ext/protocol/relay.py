"""Passes a controller's work through, with a look at the tasks of each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from scaffolding_ext.protocol import ControllerGenerator, ParallelProcess, StreamGenerationTask, close_generator

Visit = Callable[[Any], None]


def relay(
    work: Iterable[Any],
    before: Visit | None = None,
    after: Visit | None = None,
    is_stopped: Callable[[], bool] | None = None,
) -> ControllerGenerator:
    """Pass work through, branches included; the work's generator is closed with this one.

    Args:
        work: A controller's generator.
        before: Gets what each step yields, on its way to the host; branches are visited step by step.
        after: Gets it again once it is done, has failed, or is given up.
        is_stopped: Asked after each step. Once it is so, the work is closed, and streams that it left open are
            cancelled.

    Returns:
        A generator with the same yields and the same return value; None where it was stopped.
    """
    inner = iter(work)
    streams: dict[int, StreamGenerationTask] | None = None if is_stopped is None else {}
    try:
        while is_stopped is None or not is_stopped():
            try:
                step = next(inner)
            except StopIteration as end:
                return end.value
            if isinstance(step, ParallelProcess):
                step.sub_gens = [relay(branch, before, after, is_stopped) for branch in step.sub_gens]
                yield step
                continue
            if before is not None:
                before(step)
            if streams is not None and isinstance(step, list | tuple):
                streams |= {id(task): task for task in step if isinstance(task, StreamGenerationTask)}
            try:
                yield step
            finally:
                if after is not None:
                    after(step)
    finally:
        close_generator(inner)
    still_open = [task for task in (streams or {}).values() if not task.end_flag]
    for task in still_open:
        task.cancel_flag = True
    if still_open:
        yield from relay([still_open], after=after)
    return None
