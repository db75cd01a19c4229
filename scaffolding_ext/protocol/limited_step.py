"""A step of a controller's work that the host gives up when its time is over."""

from __future__ import annotations

from collections.abc import Iterable

from scaffolding_ext.protocol import Task


class LimitedStep(list[Task]):
    """Tasks that the controller waits for no longer than some seconds.

    When they are over, the host cancels the tasks that still run, and the controller goes on. A task that was given up
    has no output; what its worker says that it has cost until then is counted. TensorRT-LLM's host takes the step for a
    plain list, and waits for all.

    Args:
        tasks: Run beside each other.
        seconds: For which the controller waits, from when it yields the step; at 0 or below nothing is run.

    Attributes:
        seconds: As given.
        is_given_up: Whether the seconds were over before all tasks were done; the host says so.
    """

    def __init__(self, tasks: Iterable[Task], seconds: float) -> None:
        super().__init__(tasks)
        self.seconds = seconds
        self.is_given_up = False
