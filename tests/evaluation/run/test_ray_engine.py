"""Actors take turns, and one that dies for good leaves a record; `tests/integration/test_ray.py` has real ones."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from scaffolding_ext.cli.main import main
from scaffolding_ext.errors import ConfigError, MissingDependencyError
from scaffolding_ext.evaluation.run.datasets import Sample
from scaffolding_ext.evaluation.run.engine import Job, failed_record
from scaffolding_ext.evaluation.run.ray_engine import RayEngine, ray_engine
from scaffolding_ext.stack.config import EvaluationConfig, validated

JOB = Job(Sample("a", "say 1", "1", "sum"), 2)


class DeadError(Exception):
    """As Ray's own."""


class Cluster:
    """Stands for Ray: actors whose jobs end when they are told to."""

    def __init__(self, num_actors: int) -> None:
        self.exceptions = SimpleNamespace(RayActorError=DeadError)
        self.jobs: list[tuple[int, asyncio.Future[Any]]] = []
        self.cancelled: list[Any] = []
        self.actors = [SimpleNamespace(run=SimpleNamespace(remote=self._taker(number))) for number in range(num_actors)]

    def _taker(self, number: int) -> Any:
        def take(job: Job) -> asyncio.Future[Any]:
            self.jobs.append((number, asyncio.get_running_loop().create_future()))
            return self.jobs[-1][1]

        return take

    def cancel(self, job: Any) -> None:
        self.cancelled.append(job)


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


def test_ray_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"\[ray\]"), ray_engine(lambda: None, 1):  # type: ignore[arg-type, return-value]
        pass


@pytest.mark.parametrize("settings", [{"engine": "ray"}, {"num_actors": 2}])
def test_actors_and_ray_go_together(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="engine ray needs num_actors, and no other engine takes it"):
        validated(EvaluationConfig, settings, "evaluation")


def test_the_options_reach_the_stack() -> None:
    result = CliRunner().invoke(main, ["eval", "--config", "configs:native", "--engine", "ray", "--dry_run"])
    assert result.exit_code == 2
    assert "engine ray needs num_actors" in result.stderr
