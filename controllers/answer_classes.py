"""Group a controller's equal answers without blocking its event loop."""

from __future__ import annotations

from collections.abc import Sequence

from scaffolding_ext.answers.classes import AnswerClasses, Grouping, Pair
from scaffolding_ext.answers.comparison import Verdict
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.errors import NoOutputError
from scaffolding_ext.prompts.tool_calls import classes_of
from scaffolding_ext.protocol import ControllerGenerator
from scaffolding_ext.protocol.tasks import CompareTask, MeaningTask
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.request.program import current_program, record


def classify(
    controller: BaseController, answers: Sequence[str | None], known: AnswerClasses | None = None
) -> ControllerGenerator:
    """Return the class of each answer, in order of first appearance, -1 for None.

    If the texts leave equality open, a worker `compare` decides, if the stack has one; otherwise such answers are
    compared as strings and the trace says so. A worker that groups open-ended answers decides about all of them.

    Args:
        known: Knowledge of the request's earlier answers. A controller that classifies repeatedly passes the same
            `AnswerClasses` each time, so that only new answers are compared.
    """
    program = current_program()
    if program is not None and program.question.tools:  # calls, in canonical JSON
        return classes_of(answers)
    if controller.can_serve(WorkerTag.COMPARE, MeaningTask):
        task = MeaningTask(worker_tag=WorkerTag.COMPARE, answers=list(answers))
        yield [task]
        return _left(task, task.classes, "classes")
    can_compare = controller.can_serve(WorkerTag.COMPARE, CompareTask)
    steps = (AnswerClasses() if known is None else known).group(answers)
    try:
        pairs = next(steps)
        while True:
            if not pairs:
                yield []  # let other work run
                verdicts = []
            elif can_compare:
                verdicts = yield from _compared(answers, pairs)
            else:
                verdicts = [Verdict.UNDETERMINED] * len(pairs)
            pairs = steps.send(verdicts)
    except StopIteration as stop:
        grouped: Grouping = stop.value
    if grouped.num_undetermined and can_compare:
        record("undetermined", num_undetermined=grouped.num_undetermined)
    elif grouped.num_undetermined:
        record(
            "fallback",
            task="CompareTask",
            to="strings",
            num_undetermined=grouped.num_undetermined,
            reason="no worker compares answers",
        )
    return grouped.classes


def _compared(answers: Sequence[str | None], pairs: Sequence[Pair]) -> ControllerGenerator:
    index = {answer: number for number, answer in enumerate(answers) if answer is not None}
    numbers = [(index[left], index[right]) for left, right in pairs]
    task = CompareTask(worker_tag=WorkerTag.COMPARE, answers=list(answers), pairs=numbers)
    yield [task]
    if task.verdicts is not None:
        return task.verdicts
    classes = _left(task, task.classes, "verdicts")  # from a worker that groups all answers
    return [Verdict.EQUAL if classes[i] == classes[j] else Verdict.DIFFERENT for i, j in numbers]


def _left(task: CompareTask, result: list[int] | None, what: str) -> list[int]:
    if result is None:
        raise NoOutputError(
            f"the worker 'compare' left no {what} in a {type(task).__name__}; it failed silently: read its log"
        )
    return result
