"""Evaluation on a Ray cluster, one stack per actor; an actor's death costs only the time of its jobs in flight."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stdout
from typing import Any

from scaffolding_ext.errors import EngineError, MissingDependencyError
from scaffolding_ext.evaluation.run.records import Record
from scaffolding_ext.evaluation.run.runner import Engine, EvaluationJob, failed_record

MakeEngine = Callable[[], AbstractContextManager[Engine]]
_MAX_RETRIES = 3  # of a job whose actor died; a job that kills all its processes fails
_MAX_RESTARTS = 20  # of an actor; one that cannot load its model is dropped
_MAX_CONCURRENCY = 100_000  # calls in an actor; the engine limits its jobs
_CLOSE_SECONDS = 30.0  # for stacks to shut down at the end


class StackActor:
    """An engine in an actor, in the driver's folder if it exists there."""

    def __init__(self, make_engine: MakeEngine, folder: str) -> None:
        if os.path.isdir(folder):
            os.chdir(folder)
        self._stack = ExitStack()
        self._engine = self._stack.enter_context(make_engine())

    async def size(self) -> int:
        return self._engine.max_parallel_requests

    async def run(self, job: EvaluationJob) -> Record:
        return await self._engine.run(job)

    async def is_up(self) -> bool:
        return await self._engine.is_up()

    async def close(self) -> None:
        await asyncio.to_thread(self._stack.close)


class RayEngine:
    """Runs each job on the actor with the fewest jobs.

    Ray restarts an actor that died, and reruns its jobs in flight with the same seeds. An actor whose restart fails
    leaves the pool, and its jobs go to other actors.
    """

    def __init__(self, ray: Any, actors: list[Any], size: int) -> None:
        self.max_parallel_requests = len(actors) * size
        self._ray = ray
        self._size = size
        self._num_jobs = dict.fromkeys(actors, 0)
        self._freed = asyncio.Condition()
        self._last_error: Exception | None = None

    async def run(self, job: EvaluationJob) -> Record:
        """Run a job; cancelling it cancels the request.

        A job fails if it has killed its process several times, or lost several actors for good.

        Raises:
            EngineError: No actor is left.
        """
        for _ in range(1 + _MAX_RETRIES):
            actor = await self._allocated()
            running = actor.run.remote(job)
            try:
                record: Record = await running
            except asyncio.CancelledError:
                self._ray.cancel(running)
                raise
            except self._ray.exceptions.RayActorError as error:
                self._last_error = error
                if not await self._is_gone(actor):
                    break
            else:
                return record
            finally:
                await self._free(actor)
        assert self._last_error is not None
        return failed_record(job, self._last_error)

    def num_written(self) -> int:
        return 0  # asking the actors would cost them time

    async def is_up(self) -> bool:
        """Ask one actor for the servers, which all of them share."""
        actor = next(iter(self._num_jobs), None)
        if actor is None:
            return False
        try:
            return bool(await actor.is_up.remote())
        except self._ray.exceptions.RayActorError:  # the next job will find out what is left
            return True

    async def _allocated(self) -> Any:
        """Return the actor with the fewest jobs, once it has room for another."""
        async with self._freed:
            while True:
                if not self._num_jobs:
                    raise EngineError(
                        f"no actor is left: each died and could not be restarted, the last with: {self._last_error}; "
                        "finished answers are saved, and --resume runs the rest"
                    )
                actor = min(self._num_jobs, key=self._num_jobs.__getitem__)
                if self._num_jobs[actor] < self._size:
                    self._num_jobs[actor] += 1
                    return actor
                await self._freed.wait()

    async def _free(self, actor: Any) -> None:
        async with self._freed:
            if actor in self._num_jobs:
                self._num_jobs[actor] -= 1
            self._freed.notify_all()

    async def _is_gone(self, actor: Any) -> bool:
        """Return True if an actor will not come back, after removing it from the pool."""
        try:
            await actor.size.remote()
        except self._ray.exceptions.RayActorError:
            self._num_jobs.pop(actor, None)
            return True
        return False


@contextmanager
def ray_engine(make_engine: MakeEngine, num_actors: int, gpus_per_actor: float | None = None) -> Iterator[RayEngine]:
    """Start actors on the cluster that Ray finds (`RAY_ADDRESS`, or one running here), or on a new one.

    Args:
        make_engine: Builds an actor's engine; it is sent to the actors.
        gpus_per_actor: GPUs that Ray assigns to each; None divides those of the cluster evenly.

    Raises:
        MissingDependencyError: Ray is not installed.
        EngineError: An actor could not be started.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError("ray", "ray") from error
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(sys.stderr))  # Ray reports dead actors on standard output
        if not ray.is_initialized():
            ray.init(log_to_driver=False, include_dashboard=False)
            stack.callback(ray.shutdown)
        if gpus_per_actor is None:
            share = ray.cluster_resources().get("GPU", 0.0) / num_actors
            gpus_per_actor = float(int(share)) if share >= 1 else share
        options = {"max_restarts": _MAX_RESTARTS, "max_task_retries": _MAX_RETRIES, "max_concurrency": _MAX_CONCURRENCY}
        # Cores are shared: if each actor reserved one, actors beyond the cluster's cores would wait forever.
        placement = {"num_gpus": gpus_per_actor, "num_cpus": 0, "scheduling_strategy": "SPREAD"}
        remote = ray.remote(StackActor).options(**options, **placement)
        actors = [remote.remote(make_engine, os.getcwd()) for _ in range(num_actors)]
        try:
            sizes = ray.get([actor.size.remote() for actor in actors])
        except ray.exceptions.RayError as error:
            raise EngineError(f"an actor could not be started: {error}") from error
        stack.callback(_close, ray, actors)
        yield RayEngine(ray, actors, sizes[0])


def _close(ray: Any, actors: list[Any]) -> None:
    ray.wait([actor.close.remote() for actor in actors], num_returns=len(actors), timeout=_CLOSE_SECONDS)
    for actor in actors:
        ray.kill(actor)
