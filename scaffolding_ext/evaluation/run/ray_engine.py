"""An evaluation over a Ray cluster, one stack an actor. An actor that dies costs only the time of what it had begun."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from scaffolding_ext.errors import EngineError, MissingDependencyError
from scaffolding_ext.evaluation.run.engine import Engine, Job, failed_record
from scaffolding_ext.evaluation.run.records import Record

MakeEngine = Callable[[], AbstractContextManager[Engine]]
_MAX_RETRIES = 3  # of a job whose actor died; a sample that kills each of its actors ends with an error
_MAX_CONCURRENCY = 100_000  # calls in an actor; the engine says how many jobs there are at once
_CLOSE_SECONDS = 30.0  # that stacks may take to shut down at the end


class StackActor:
    """What runs in an actor: an engine of its own, in the folder of the driver where that is there.

    Args:
        make_engine: Makes the engine; it is closed by `close`.
        folder: The driver's current folder.
    """

    def __init__(self, make_engine: MakeEngine, folder: str) -> None:
        if os.path.isdir(folder):
            os.chdir(folder)
        self._stack = ExitStack()
        self._engine = self._stack.enter_context(make_engine())

    async def size(self) -> int:
        """How many jobs the engine runs at once."""
        return self._engine.max_parallel_requests

    async def run(self, job: Job) -> Record:
        """Run a job."""
        return await self._engine.run(job)

    async def close(self) -> None:
        """Shut the stack down."""
        await asyncio.to_thread(self._stack.close)


class RayEngine:
    """Runs jobs on actors, each on the one that has the fewest.

    Ray starts an actor that died again, and runs its jobs in flight again, with the seeds that they had.

    Args:
        ray: The library.
        actors: Handles of `StackActor`s.
        size: Jobs that each runs at once.
    """

    def __init__(self, ray: Any, actors: list[Any], size: int) -> None:
        self.max_parallel_requests = len(actors) * size
        self._ray = ray
        self._actors = actors
        self._num_jobs = [0] * len(actors)

    async def run(self, job: Job) -> Record:
        """As `Engine`; cancelling it cancels the request."""
        number = min(range(len(self._actors)), key=self._num_jobs.__getitem__)
        self._num_jobs[number] += 1
        running = self._actors[number].run.remote(job)
        try:
            record: Record = await running
        except asyncio.CancelledError:
            self._ray.cancel(running)
            raise
        except self._ray.exceptions.RayActorError as error:
            return failed_record(job, error)
        finally:
            self._num_jobs[number] -= 1
        return record


@contextmanager
def ray_engine(make_engine: MakeEngine, num_actors: int, gpus_per_actor: float | None = None) -> Iterator[RayEngine]:
    """Actors on the cluster that Ray finds (`RAY_ADDRESS`, or one that runs here), or on one that is begun here.

    Args:
        make_engine: Makes an actor's engine; it is sent to the actors.
        num_actors: How many.
        gpus_per_actor: GPUs that Ray assigns to each; None shares those of the cluster evenly.

    Raises:
        MissingDependencyError: Ray is not installed.
        EngineError: An actor could not be started, or the cluster has no room for it.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError("ray", "ray") from error
    with ExitStack() as stack:
        if not ray.is_initialized():
            ray.init(log_to_driver=False, include_dashboard=False)
            stack.callback(ray.shutdown)
        if gpus_per_actor is None:
            share = ray.cluster_resources().get("GPU", 0.0) / num_actors
            gpus_per_actor = float(int(share)) if share >= 1 else share
        options = {"num_gpus": gpus_per_actor, "max_restarts": -1, "max_task_retries": _MAX_RETRIES}
        remote = ray.remote(StackActor).options(**options, max_concurrency=_MAX_CONCURRENCY)
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
