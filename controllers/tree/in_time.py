"""Gives up the steps of a search that still run when its seconds are over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scaffolding_ext.protocol import ControllerGenerator, ParallelProcess, close_generator
from scaffolding_ext.protocol.branching import BranchTask
from scaffolding_ext.protocol.notes import Purpose, purpose_of, token_counts_of
from scaffolding_ext.protocol.tasks import LimitedStep
from scaffolding_ext.request.program import discard


class InTime:
    """Passes a search's work through; the host gives up each step that is not done in time.

    Args:
        seconds_left: How long a step that begins now may take.

    Attributes:
        is_late: Whether a step was given up, or could not begin.
        keeps_rest: Whether the work goes on after a step that was given up, without its outputs and without any further
            step. Otherwise the work ends there.
    """

    def __init__(self, seconds_left: Callable[[], float]) -> None:
        self._seconds_left = seconds_left
        self.is_late = False
        self.keeps_rest = False

    def limit(self, work: Any, is_branch: bool = False) -> ControllerGenerator:
        """The work, until a step of it is late; it returns None then. A branch of parallel work always ends there."""
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
                    limited = LimitedStep(step, self._seconds_left())
                    yield limited
                    is_given_up = limited.is_given_up
                    if is_given_up:
                        self.is_late = True
                        _discard(limited)
                else:
                    yield step
                    continue
                if is_given_up and (is_branch or not self.keeps_rest):
                    return None
        finally:
            if not is_over:
                close_generator(inner)


def _discard(step: LimitedStep) -> None:
    """Count the decoded tokens of given-up tasks as discarded."""
    for task in step:
        output = task.outputs if isinstance(task, BranchTask) else getattr(task, "output_str", "")
        counts, written_for = token_counts_of(task), purpose_of(task).written
        if output is None and counts is not None and written_for is Purpose.CHAIN:
            discard(Purpose.CHAIN, counts.decoded)
