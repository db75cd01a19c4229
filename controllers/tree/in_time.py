"""Holds a search to its seconds: late steps are given up, and a round is written in slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scaffolding_ext.controllers.tree.branch import Branch
from scaffolding_ext.controllers.tree.steps import StepEnds
from scaffolding_ext.protocol import ControllerGenerator, ParallelProcess, close_generator
from scaffolding_ext.protocol.branching import BranchTask
from scaffolding_ext.protocol.meta import Purpose, purpose_of, token_counts_of
from scaffolding_ext.protocol.tasks import LimitedStep
from scaffolding_ext.request.program import discard, elapsed

SLICE_LEN = 32  # tokens between two looks at the clock, at least
SPARE = 0.5  # share of a search's seconds that a verdict or a forced answer may take in any case
Write = Callable[[Sequence[Branch], Sequence[int], StepEnds | None], ControllerGenerator]


class InTime:
    """Passes a search's work through; the host gives up each step that is not done in time.

    Args:
        seconds: Of the search, from now on; None has no limit.

    Attributes:
        is_late: Whether a step was given up, or could not begin.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.is_late = False
        self._began = elapsed()
        self._keeps_rest = False  # whether the work goes on after a step that was given up, without its outputs

    @property
    def spent(self) -> float:
        return elapsed() - self._began

    @property
    def is_over(self) -> bool:
        """Whether the seconds are over, or a step was late."""
        return self.is_late or (self.seconds is not None and self.spent >= self.seconds)

    def step(self, tasks: list[Any]) -> list[Any]:
        """A step that the host gives up where it is late; a verdict or a forced answer has a share of its own."""
        return tasks if self.seconds is None else LimitedStep(tasks, self._left())

    def _left(self) -> float:
        seconds = self.seconds or 0.0
        left = seconds - self.spent
        return left if self._keeps_rest else max(left, SPARE * seconds)

    def limit(self, work: Any, is_branch: bool = False) -> ControllerGenerator:
        """The work, until a step of it is late; it returns None then. A branch of parallel work always ends there."""
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
                    limited = LimitedStep(step, self._left())
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

    def write(
        self, write: Write, nodes: Sequence[Branch], positions: Sequence[int], steps: StepEnds | None, in_slices: bool
    ) -> ControllerGenerator:
        """Write in slices until the seconds are over; returns the nodes that are unfinished then.

        A slice takes at most half of the remaining seconds, at the speed of the slice before it, and has at least
        `SLICE_LEN` tokens.

        Args:
            write: Writes nodes to their positions, or to an earlier end of their steps.
            in_slices: Whether a node can be written in pieces; if not, there is one slice.
        """
        if self.seconds is None:
            yield from write(nodes, positions, steps)
            return []
        length, ends = SLICE_LEN, tuple(steps.texts) if steps is not None else ()
        going = list(zip(nodes, positions, strict=True))
        self._keeps_rest = True
        while going:
            began = self.spent
            starts = [node.chain.num_tokens for node, _ in going]
            targets = [
                min(position, start + length) if in_slices else position
                for (_, position), start in zip(going, starts, strict=True)
            ]
            yield from write([node for node, _ in going], targets, steps)
            going = [
                (node, position)
                for (node, position), start, target in zip(going, starts, targets, strict=True)
                if not node.is_whole
                and (
                    (self.is_late and node.chain.num_tokens == start)
                    or (
                        node.chain.num_tokens == target < position
                        and (node.to_end or not ends or not node.chain.text.endswith(ends))
                    )
                )
            ]
            left = self._left()
            if left <= 0 or self.is_late or not in_slices:
                break
            length = max(SLICE_LEN, int(length * min(2.0, left / 2 / max(self.spent - began, 1e-6))))
        self._keeps_rest = False
        return [node for node, _ in going]


def _discard(step: LimitedStep) -> None:
    """Count the decoded tokens of given-up tasks as discarded."""
    for task in step:
        output = task.outputs if isinstance(task, BranchTask) else getattr(task, "output_str", "")
        counts, written_for = token_counts_of(task), purpose_of(task).written
        if output is None and counts is not None and written_for is Purpose.CHAIN:
            discard(Purpose.CHAIN, counts.decoded)
