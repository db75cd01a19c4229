"""The worker answers CompareTasks by processes of its own, and neither it nor a hostile answer holds the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from scaffolding_ext.answers import Verdict
from scaffolding_ext.errors import ConfigError, EngineError
from scaffolding_ext.protocol import TaskStatus
from scaffolding_ext.protocol.tasks import CompareTask
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.workers.compare import CompareWorker

ENDLESS = r"\sum_{n=1}^{10^{12}} \sin(n^n)"
AN_HOUR = 3600.0


@pytest.fixture(scope="module")
def worker() -> Iterator[CompareWorker]:
    with CompareWorker(AN_HOUR, num_processes=2) as worker:
        yield worker


def compare_task(*answers: str | None) -> CompareTask:
    return CompareTask(worker_tag=WorkerTag.COMPARE, answers=list(answers))


async def classes_of(worker: CompareWorker, *answers: str | None) -> list[int] | None:
    task = compare_task(*answers)
    assert await worker.run_task(task) is TaskStatus.SUCCESS
    return task.classes


def test_pairs_get_a_verdict_each_and_nothing_else_is_compared(worker: CompareWorker) -> None:
    task = compare_task("(x+1)^2", None, "x^2+2x+1", "7", r"\sqrt{49}", ENDLESS)
    task.pairs = [(2, 0), (3, 0), (4, 3)]
    assert asyncio.run(worker.run_task(task)) is TaskStatus.SUCCESS
    assert task.verdicts == [Verdict.EQUAL, Verdict.DIFFERENT, Verdict.EQUAL]
    assert task.classes is None


def test_classes_are_numbered_by_first_appearance_and_none_is_in_none(worker: CompareWorker) -> None:
    answers = ("(x+1)^2", None, r"\sqrt{242}", "x^2+2x+1", r"11\sqrt2", "7", None)
    assert asyncio.run(classes_of(worker, *answers)) == [0, -1, 1, 0, 1, 2, -1]


def test_others_are_answered_while_a_hostile_answer_is_compared(worker: CompareWorker) -> None:
    async def run() -> None:
        hostile = asyncio.create_task(worker.run_task(compare_task(ENDLESS, "x+1", "5")))
        await asyncio.sleep(0)
        assert await classes_of(worker, "2x+2", "2(x+1)") == [0, 0]
        assert not hostile.done()
        hostile.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hostile
        assert await classes_of(worker, "3x+3", "3(x+1)") == [0, 0]

    asyncio.run(run())


def test_a_hostile_answer_is_undetermined_and_counted() -> None:
    async def run() -> None:
        with CompareWorker(0.02, num_processes=1) as worker:
            task = compare_task(ENDLESS, "5", "6")
            await worker.run_task(task)
            assert (task.classes, task.num_undetermined) == ([0, 1, 2], 1)

    asyncio.run(run())


def test_tasks_in_flight_fail_when_the_worker_is_shut_down() -> None:
    async def run() -> None:
        worker = CompareWorker(AN_HOUR, num_processes=1)
        running = asyncio.create_task(worker.run_task(compare_task(ENDLESS, "x+1")))
        await asyncio.sleep(0)
        worker.shutdown()
        with pytest.raises(EngineError, match="closed"):
            await running
        with pytest.raises(EngineError, match="closed"):
            await worker.run_task(compare_task("x+1", "1+x"))
        worker.shutdown()

    asyncio.run(run())


@pytest.mark.parametrize("argument", ["deadline_seconds", "num_processes", "max_remembered"])
def test_an_argument_must_be_above_zero(argument: str) -> None:
    with pytest.raises(ConfigError, match=f"{argument}: is 0"):
        CompareWorker(**{argument: 0})  # type: ignore[arg-type]


def test_units_are_implied_only_where_the_caller_says_so() -> None:
    async def run() -> None:
        with CompareWorker(units_implied=True) as worker:
            assert await classes_of(worker, "42", r"42 \text{ inches}", "50%", "50", "0.5") == [0, 0, 1, 1, 2]
        with CompareWorker() as worker:
            assert await classes_of(worker, "42", r"42 \text{ inches}", "50%", "50", "0.5") == [0, 1, 2, 3, 4]

    asyncio.run(run())
