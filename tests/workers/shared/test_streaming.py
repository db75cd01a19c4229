"""Streams that a request leaves open are closed when it has ended, under a host without scopes too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.protocol import (
    ControllerGenerator,
    ExecutionScope,
    GenerationTask,
    ParallelProcess,
    StreamGenerationTask,
    current_scope,
)
from scaffolding_ext.protocol.meta import TokenCounts
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.workers.shared.streaming import Answer, OpenStreams, Stream


class Noted(Stream):
    """A stream of which only its end is noted."""

    counts = TokenCounts()

    def __init__(self, number: int, closed: list[int]) -> None:
        self._number, self._closed = number, closed

    async def wait(self, num_tokens: int) -> Answer:
        raise NotImplementedError

    async def cancel(self) -> Answer:
        raise NotImplementedError

    async def close(self) -> None:
        self._closed.append(self._number)

    def let_run_to(self, num_tokens: int) -> None:
        raise NotImplementedError


class Opening(ScriptedWorker):
    """Notes the streams that it opens as real workers do, and those that are closed."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.closed: list[int] = []
        self.open = OpenStreams()

    def _answer(self, task: Any) -> Any:
        if task.input_str == "fails":
            return RuntimeError("the engine is gone")
        if isinstance(task, StreamGenerationTask):
            self.open.add(Noted(len(self.tasks), self.closed))
        return "x" * 100


class Forking(BaseController):
    """One branch streams without end, another fails."""

    ended_by: list[BaseException]

    def run(self, task: GenerationTask, **kwargs: Any) -> ControllerGenerator:
        process = ParallelProcess([], [], [])
        process.sub_gens = [self._stream(), self._fail()]
        yield process

    def _stream(self) -> ControllerGenerator:
        stream = StreamGenerationTask(worker_tag=WorkerTag.GENERATION, input_str="streams")
        while not stream.end_flag:
            yield [stream]

    def _fail(self) -> ControllerGenerator:
        for text in ("goes on", "fails"):
            yield [GenerationTask(worker_tag=WorkerTag.GENERATION, input_str=text)]


def test_without_scopes_they_are_closed_with_the_request() -> None:
    """As 1.2's host does it: nobody ends a scope, and branches beside the one that failed are left running."""
    worker = Opening()
    branches: list[asyncio.Task[Any]] = []

    async def drive(work_items: Iterable[Any]) -> None:
        for work in work_items:
            if isinstance(work, ParallelProcess):
                forked = [asyncio.ensure_future(drive(branch)) for branch in work.sub_gens]
                branches.extend(forked)
                await asyncio.gather(*forked)
            else:
                await asyncio.gather(*(worker.run_task(task) for task in work))

    async def scenario() -> None:
        request = asyncio.ensure_future(drive(Forking().clone().generate("q")))
        with pytest.raises(RuntimeError, match="the engine is gone"):
            await request
        outcomes = await asyncio.gather(*branches, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), RuntimeError]  # the other one ended, too

    asyncio.run(scenario())
    assert worker.closed == [1]
    assert not worker.open


def test_with_scopes_they_are_closed_with_the_scope() -> None:
    worker = Opening()

    async def scenario() -> None:
        for number, name in enumerate(("one", "two")):
            current_scope.set(ExecutionScope(name))
            await worker.run_task(StreamGenerationTask(input_str="streams"))
            assert worker.closed == []
            assert len(worker.open) == number + 1
        await worker.open.end("one")
        assert worker.closed == [1]

    asyncio.run(scenario())
    assert list(worker.open) == ["two"]
