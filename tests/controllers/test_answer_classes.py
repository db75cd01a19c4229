"""Controllers ask which answers are equal without blocking, and without a worker for it vote by the text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from scaffolding_ext.answers import Verdict
from scaffolding_ext.answers.classes import AnswerClasses
from scaffolding_ext.controllers.answer_classes import classify
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.errors import NoOutputError
from scaffolding_ext.protocol.tasks import CompareTask
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.request.program import Program, enter_program
from scaffolding_ext.workers.compare import CompareWorker

OPEN = ["x+1", "1+x", None, "x+1"]


class Bound(BaseController):
    """A controller whose stack compares answers."""

    def can_serve(self, tag: WorkerTag, task_type: type[Any]) -> bool:
        return tag is WorkerTag.COMPARE and task_type in CompareWorker.task_handlers


@pytest.fixture
def program() -> Iterator[Program]:
    program = Program()
    token = enter_program(program)
    yield program
    token.var.reset(token)


def returned(generator: Any) -> Any:
    with pytest.raises(StopIteration) as stop:
        next(generator)
    return stop.value.value


def test_what_the_text_tells_asks_no_worker(program: Program) -> None:
    assert returned(classify(Bound(), ["0.5", None, "1/2", "7"])) == [0, -1, 0, 1]
    assert program.trace == []


def test_the_rest_goes_to_the_worker(program: Program) -> None:
    generator = classify(Bound(), OPEN)
    (task,) = next(generator)
    assert isinstance(task, CompareTask)
    assert (task.worker_tag, task.answers, task.pairs) == (WorkerTag.COMPARE, OPEN, [(3, 1)])
    task.verdicts = [Verdict.EQUAL]
    assert returned(generator) == [0, 0, -1, 0]
    assert program.trace == []


def test_what_the_worker_cannot_tell_counts_as_different_and_the_trace_says_so(program: Program) -> None:
    generator = classify(Bound(), OPEN)
    (task,) = next(generator)
    task.verdicts = [Verdict.UNDETERMINED]
    assert returned(generator) == [0, 1, -1, 0]
    assert [(entry["event"], entry["num_undetermined"]) for entry in program.trace] == [("undetermined", 1)]


@pytest.mark.parametrize(("classes", "expected"), [([0, 0, -1, 0], [0, 0, -1, 0]), ([0, 1, -1, 0], [0, 1, -1, 0])])
def test_a_worker_may_group_all_answers_instead(program: Program, classes: list[int], expected: list[int]) -> None:
    generator = classify(Bound(), OPEN)
    (task,) = next(generator)
    task.classes = classes
    assert returned(generator) == expected


def test_what_a_request_knows_of_its_answers_asks_nobody_again(program: Program) -> None:
    known = AnswerClasses()
    generator = classify(Bound(), OPEN, known)
    next(generator)[0].verdicts = [Verdict.EQUAL]
    returned(generator)
    assert returned(classify(Bound(), [*OPEN, "1+x", None], known)) == [0, 0, -1, 0, 0, -1]
    generator = classify(Bound(), [*OPEN, "x*1+1"], known)
    (task,) = next(generator)
    assert [tuple(task.answers[i] for i in pair) for pair in task.pairs] == [("x*1+1", "1+x")]


def test_a_worker_that_left_nothing_is_an_error(program: Program) -> None:
    generator = classify(Bound(), OPEN)
    next(generator)
    with pytest.raises(NoOutputError, match="left no verdicts"):
        next(generator)


def test_without_a_worker_open_answers_vote_as_strings_and_the_trace_says_so(program: Program) -> None:
    assert returned(classify(BaseController(), OPEN)) == [0, 1, -1, 0]
    (entry,) = program.trace
    assert (entry["event"], entry["to"], entry["num_undetermined"]) == ("fallback", "strings", 1)
