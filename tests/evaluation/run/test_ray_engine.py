"""Actors take turns, and one that is gone for good leaves the pool; `tests/integration/test_ray.py` has real ones."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from scaffolding_ext.errors import EngineError, MissingDependencyError
from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.evaluation.run.ray_engine import RayEngine, ray_engine
from scaffolding_ext.evaluation.run.runner import EvaluationJob, failed_record

JOB = EvaluationJob(Example("a", "say 1", "1", "sum"), 2)


class DeadError(Exception):
    """As Ray's own."""


class Actor:
    """Stands for the handle of an actor; its jobs end when they are told to."""

    def __init__(self, number: int, cluster: Cluster) -> None:
        self.is_gone = False
        self._number, self._cluster = number, cluster
        self.run, self.size = SimpleNamespace(remote=self._take), SimpleNamespace(remote=self._tell)

    def _take(self, job: EvaluationJob) -> asyncio.Future[Any]:
        ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._cluster.jobs.append((self._number, ended))
        self._cluster.is_given.set()
        if self.is_gone:
            ended.set_exception(DeadError("cannot be restarted"))
        return ended

    async def _tell(self) -> int:
        if self.is_gone:
            raise DeadError("cannot be restarted")
        return 1


class Cluster:
    """Stands for Ray."""

    def __init__(self, num_actors: int) -> None:
        self.exceptions = SimpleNamespace(RayActorError=DeadError)
        self.jobs: list[tuple[int, asyncio.Future[Any]]] = []
        self.cancelled: list[Any] = []
        self.is_given = asyncio.Event()
        self.actors = [Actor(number, self) for number in range(num_actors)]

    def cancel(self, job: Any) -> None:
        self.cancelled.append(job)

    async def taken(self, num_jobs: int) -> None:
        """Wait until the actors were given so many jobs, in all."""
        while len(self.jobs) < num_jobs:
            self.is_given.clear()
            await self.is_given.wait()


async def begun(engine: RayEngine, num_jobs: int) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.create_task(engine.run(JOB)) for _ in range(num_jobs)]
    await asyncio.sleep(0)
    return tasks


def test_a_job_goes_to_the_actor_that_has_the_fewest() -> None:
    async def scenario() -> None:
        cluster = Cluster(2)
        engine = RayEngine(cluster, cluster.actors, 3)
        assert engine.max_parallel_requests == 6
        tasks = await begun(engine, 3)
        assert [number for number, _ in cluster.jobs] == [0, 1, 0]
        cluster.jobs[0][1].set_result("record")
        assert await tasks[0] == "record"
        cluster.jobs[2][1].set_result("record")
        await tasks[2]
        await begun(engine, 1)
        assert cluster.jobs[-1][0] == 0
        tasks[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
        assert cluster.cancelled == [cluster.jobs[1][1]]

    asyncio.run(scenario())


def test_a_sample_that_kills_its_actors_has_a_record() -> None:
    async def scenario() -> None:
        cluster = Cluster(1)
        (task,) = await begun(RayEngine(cluster, cluster.actors, 1), 1)
        cluster.jobs[0][1].set_exception(DeadError("died again"))
        record = await task
        ended = record.seconds["ended_at"]  # the clock of another call differs
        expected = failed_record(JOB, DeadError("died again"))
        assert record == dataclasses.replace(expected, seconds=expected.seconds | {"ended_at": ended})
        assert (record.id, record.epoch, record.kind, record.correct) == ("a", 2, "sum", False)
        assert record.error is not None
        assert record.error.message == "died again"

    asyncio.run(scenario())


def test_an_actor_that_is_gone_leaves_the_pool_and_its_jobs_go_to_another() -> None:
    async def scenario() -> None:
        cluster = Cluster(2)
        engine = RayEngine(cluster, cluster.actors, 2)
        tasks = await begun(engine, 4)
        assert [number for number, _ in cluster.jobs] == [0, 1, 0, 1]
        cluster.actors[0].is_gone = True
        for number in (0, 2):
            cluster.jobs[number][1].set_exception(DeadError("killed"))
        for number in (1, 3):
            cluster.jobs[number][1].set_result(f"of {number}")
        await cluster.taken(6)
        assert [number for number, _ in cluster.jobs[4:]] == [1, 1]
        waits = await begun(engine, 1)
        for number in (4, 5):
            cluster.jobs[number][1].set_result(f"of {number}")
        assert sorted([await task for task in tasks]) == ["of 1", "of 3", "of 4", "of 5"]
        await cluster.taken(7)
        assert cluster.jobs[6][0] == 1
        cluster.jobs[6][1].set_result("last")
        assert await waits[0] == "last"

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_run_ends_where_no_actor_is_left() -> None:
    async def scenario() -> None:
        cluster = Cluster(2)
        for actor in cluster.actors:
            actor.is_gone = True
        with pytest.raises(EngineError, match=r"no actor is left: .* the last with: cannot be restarted; .* --resume"):
            await RayEngine(cluster, cluster.actors, 1).run(JOB)
        assert [number for number, _ in cluster.jobs] == [0, 1]

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_ray_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"\[ray\]"), ray_engine(lambda: None, 1):  # type: ignore[arg-type, return-value]
        pass
