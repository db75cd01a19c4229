"""Limits work to a number of seconds; the host gives up late steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from scaffolding_ext.protocol import ControllerGenerator, ParallelProcess, close_generator
from scaffolding_ext.protocol.branching import BranchTask
from scaffolding_ext.protocol.meta import Purpose, purpose_of, token_counts_of
from scaffolding_ext.protocol.tasks import LimitedStep
from scaffolding_ext.request.program import discard, elapsed

SPARE = 0.5  # share of the seconds that a verdict or a forced answer may always take


class TimeLimit:
    """Passes work through; the host gives up steps that are not done in time.

    Args:
        seconds: From now on; None sets no limit.

    Attributes:
        is_late: A step was given up, or could not begin.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.is_late = False
        self._began = elapsed()
        self._keeps_rest = False

    @property
    def spent(self) -> float:
        return elapsed() - self._began

    @property
    def is_over(self) -> bool:
        """True once the seconds are over, or a step was late."""
        return self.is_late or (self.seconds is not None and self.spent >= self.seconds)

    @contextlib.contextmanager
    def keeping_rest(self) -> Iterator[None]:
        """Let the enclosed work continue without the outputs of a step that was given up."""
        self._keeps_rest = True
        yield
        self._keeps_rest = False

    def step(self, tasks: list[Any]) -> list[Any]:
        """Build a step that the host gives up if it is late; a verdict or a forced answer has its own share."""
        return tasks if self.seconds is None else LimitedStep(tasks, self.left)

    @property
    def left(self) -> float:
        seconds = self.seconds or 0.0
        left = seconds - self.spent
        return left if self._keeps_rest else max(left, SPARE * seconds)

    def limit(self, work: Any, is_branch: bool = False) -> ControllerGenerator:
        """Run the work until a step of it is late, then return None. A branch of parallel work always ends there."""
        if self.seconds is None:
            return (yield from work)
        inner = iter(work)
        is_over = is_given_up = False
        try:
            while True:
                try:
                    step = next(inner)
                except StopIteration as end:
                    is_over = True
                    return end.value
                if isinstance(step, ParallelProcess):
                    if self.is_late:
                        return None
                    step.sub_gens = [self.limit(branch, is_branch=True) for branch in step.sub_gens]
                    yield step
                    is_given_up = self.is_late
                elif step:
                    if self.is_late:
                        return None
                    limited = LimitedStep(step, self.left)
                    yield limited
                    is_given_up = limited.is_given_up
                    if is_given_up:
                        self.is_late = True
                        _discard(limited)
                else:
                    yield step
                    continue
                if is_given_up and (is_branch or not self._keeps_rest):
                    return None
        finally:
            if not is_over:
                close_generator(inner)


def _discard(step: LimitedStep) -> None:
    for task in step:
        output = task.outputs if isinstance(task, BranchTask) else getattr(task, "output_str", "")
        counts, written_for = token_counts_of(task), purpose_of(task).written
        if output is None and counts is not None and written_for is Purpose.CHAIN:
            discard(Purpose.CHAIN, counts.decoded)
