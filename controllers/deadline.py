"""Ends work at the request's deadline; the host gives up steps that stall past it."""

from __future__ import annotations

from typing import Any

from scaffolding_ext.protocol import ControllerGenerator, ParallelProcess, close_generator
from scaffolding_ext.protocol.branching import BranchTask
from scaffolding_ext.protocol.meta import Purpose, purpose_of, token_counts_of
from scaffolding_ext.protocol.tasks import LimitedStep, RollingBranches
from scaffolding_ext.request.program import discard, seconds_left


def is_over() -> bool:
    """Return True once the request's deadline has passed."""
    left = seconds_left()
    return left is not None and left <= 0


def by_deadline(work: Any, keeps_rest: bool = False) -> ControllerGenerator:
    """Run the work until a step of it is given up at the request's deadline; return True if one was.

    Args:
        work: Steps that it has limited itself, and samples of a vote, are left to it.
        keeps_rest: Continue the work after that step; the tasks that were given up have no output.
    """
    inner, is_late = iter(work), False
    try:
        for step in inner:
            left = seconds_left()
            if left is None or not step or isinstance(step, LimitedStep | RollingBranches):
                yield step
                continue
            if isinstance(step, ParallelProcess):
                late: list[bool] = []
                step.sub_gens = [_noted(late, branch) for branch in step.sub_gens]
                yield step
                is_given_up = any(late)
            else:
                limited = LimitedStep(step, left)
                yield limited
                is_given_up = limited.is_given_up
                if is_given_up:
                    _discard(limited)
            is_late = is_late or is_given_up
            if is_given_up and not keeps_rest:
                break
    finally:
        close_generator(inner)
    return is_late


def _noted(late: list[bool], branch: Any) -> ControllerGenerator:
    late.append((yield from by_deadline(branch)))


def _discard(step: LimitedStep) -> None:
    for task in step:
        output = task.outputs if isinstance(task, BranchTask) else getattr(task, "output_str", "")
        counts, written_for = token_counts_of(task), purpose_of(task).written
        if output is None and counts is not None and written_for is Purpose.CHAIN:
            discard(Purpose.CHAIN, counts.decoded)
