"""Workers of this package under the strict rule of TensorRT-LLM's own: what an instance serves, whatever host asks."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.protocol import GenerationTask, RewardTask, StreamGenerationTask, TaskStatus, Worker, standins
from scaffolding_ext.protocol.standins import TaskHandler
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.protocol.worker import BaseWorker, WrappingWorker
from scaffolding_ext.testing import ScriptedWorker


class Oldest(Worker):
    """A worker of 1.2, which has neither `on_scope_end` nor an `__exit__` that takes an error."""

    is_shut_down = False
    on_scope_end = None  # type: ignore[assignment]

    async def _serve(self, task: Any) -> TaskStatus:
        task.output_str = "old"
        return TaskStatus.SUCCESS

    task_handlers: ClassVar[dict[type[Any], TaskHandler]] = {GenerationTask: _serve, StreamGenerationTask: _serve}

    def shutdown(self) -> None:
        self.is_shut_down = True


def test_the_stand_in_looks_handlers_up_on_the_class_as_upstream_does() -> None:
    class OnInstance(standins.Worker):
        def __init__(self) -> None:
            self.task_handlers = dict(Oldest.task_handlers)  # type: ignore[misc]

    status = asyncio.run(OnInstance().run_task(standins.GenerationTask()))
    assert status is standins.TaskStatus.WORKER_NOT_SUPPORTED


def test_ours_serves_what_the_instance_says() -> None:
    worker = ScriptedWorker("a")
    other = ScriptedWorker("b")
    worker.register_task_handler(RewardTask, Oldest._serve)
    assert RewardTask not in other.task_handlers
    assert asyncio.run(worker.run_task(RewardTask())) is TaskStatus.SUCCESS
    assert asyncio.run(other.run_task(RewardTask())) is TaskStatus.WORKER_NOT_SUPPORTED


def test_what_is_refused_says_why_and_ends_with_an_error() -> None:
    class Refusing(BaseWorker):
        refused: ClassVar = {"ScoreTask": "the server gives no log-probabilities"}

    with pytest.raises(InvalidTaskError, match="Refusing does not serve ScoreTask: the server gives no"):
        asyncio.run(Refusing().run_task(ScoreTask()))


def test_one_around_a_worker_of_the_oldest_release_serves_and_ends_with_it() -> None:
    inner = Oldest()
    with WrappingWorker(inner) as worker:
        task = GenerationTask(input_str="q")
        assert asyncio.run(worker.run_task(task)) is TaskStatus.SUCCESS
        assert task.output_str == "old"
        asyncio.run(worker.on_scope_end("request-0"))
        assert set(worker.task_handlers) == set(inner.task_handlers)
    assert inner.is_shut_down


def test_one_around_a_worker_tells_what_that_one_tells_and_nothing_else() -> None:
    inner = ScriptedWorker("a")
    assert WrappingWorker(inner).model is None  # type: ignore[attr-defined]
    assert not hasattr(WrappingWorker(Oldest()), "model")
    inner.refused = {"RewardTask": "none"}
    with pytest.raises(InvalidTaskError, match="does not serve RewardTask: none"):
        asyncio.run(WrappingWorker(inner).run_task(RewardTask()))


def test_an_error_leaves_the_with_statement() -> None:
    with pytest.raises(ZeroDivisionError), ScriptedWorker("a"):
        raise ZeroDivisionError
