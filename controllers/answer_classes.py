"""Classes of equal answers for a controller, which must not block its event loop."""

from __future__ import annotations

from collections.abc import Sequence

from scaffolding_ext.answers import compare
from scaffolding_ext.answers.classes import Grouping, grouping
from scaffolding_ext.answers.verdict import Verdict
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.errors import NoOutputError
from scaffolding_ext.protocol import ControllerGenerator
from scaffolding_ext.protocol.tasks import CompareTask, MeaningTask
from scaffolding_ext.protocol.worker_tags import WorkerTag
from scaffolding_ext.request.program import record


def classify(controller: BaseController, answers: Sequence[str | None]) -> ControllerGenerator:
    """Which answers are equal; use it as `classes = yield from classify(self, answers)`.

    Where the answers' text leaves something open, a worker `compare` decides it, if the stack has one; else what is
    open votes as strings and the trace says so. A worker that groups open-ended answers decides about all of them.

    Args:
        controller: Knows what its workers can do.
        answers: The answers; None stands for "no answer" and equals nothing.

    Returns:
        A class number for each answer, in order of first appearance, -1 for None.

    Raises:
        NoOutputError: The worker left no classes.
    """
    if controller.can_serve(WorkerTag.COMPARE, MeaningTask):
        return (yield from _asked(MeaningTask(worker_tag=WorkerTag.COMPARE, answers=list(answers))))
    grouped = _by_text(answers)
    if grouped.num_undetermined == 0:
        return grouped.classes
    if not controller.can_serve(WorkerTag.COMPARE, CompareTask):
        record(
            "lowered",
            task="CompareTask",
            to="strings",
            num_undetermined=grouped.num_undetermined,
            reason="no worker compares answers",
        )
        return grouped.classes
    return (yield from _asked(CompareTask(worker_tag=WorkerTag.COMPARE, answers=list(answers))))


def _asked(task: CompareTask) -> ControllerGenerator:
    yield [task]
    if task.classes is None:
        raise NoOutputError(
            f"the worker 'compare' left no classes in a {type(task).__name__}; it failed silently: read its log"
        )
    if task.num_undetermined:
        record("undetermined", num_undetermined=task.num_undetermined)
    return task.classes


def _by_text(answers: Sequence[str | None]) -> Grouping:
    steps = grouping(answers, compare)
    try:
        pairs = next(steps)
        while True:
            pairs = steps.send([Verdict.UNDETERMINED] * len(pairs))
    except StopIteration as stop:
        grouped: Grouping = stop.value
        return grouped
