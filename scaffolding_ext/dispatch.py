"""Runs what controllers yield: tasks on the workers of their tags, branches beside each other."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, NoReturn

from scaffolding_ext.errors import InvalidYieldError, TaskError, UnknownWorkerTagError
from scaffolding_ext.protocol import ExecutionScope, ParallelProcess, Task, TaskStatus, Worker, current_scope
from scaffolding_ext.results import ScaffoldingResult

_MAX_TURNS = 256  # of one generator, until others get theirs: workers that answer at once never suspend it


class _StreamSink(list[Any]):
    """A task's `streaming_output_list` that hands each output to the caller at once."""

    def __init__(self, result: ScaffoldingResult, outputs: Iterable[Any]) -> None:
        super().__init__()
        self._result = result
        self.extend(outputs)  # a controller may have put some there itself

    def append(self, output: Any) -> None:
        self._result.push(output)

    def extend(self, outputs: Iterable[Any]) -> None:
        for output in outputs:
            self._result.push(output)


class Dispatcher:
    """Drives controllers' generators on a set of workers.

    Args:
        workers: Worker by tag; an enum member and its value name the same worker.

    Attributes:
        by_tag: The workers, found by either.
    """

    def __init__(self, workers: Mapping[Any, Worker]) -> None:
        self.by_tag: dict[Any, Worker] = _ByTag(workers)
        self._scope_listeners = [worker for worker in set(workers.values()) if _listens_to_scopes(worker)]

    async def drive(self, generator: Any, result: ScaffoldingResult, scope: ExecutionScope) -> Any:
        """Run a controller's generator to its end, in a scope, and return its value.

        Args:
            generator: Yields lists of tasks and ParallelProcesses.
            result: Gets what the tasks stream.
            scope: The current scope of everything that the generator asks for; it ends with the generator.

        Raises:
            InvalidYieldError: The generator yielded something else.
            UnknownWorkerTagError: A task asks for a worker that is not there.
            TaskError: A task failed.
        """
        current_scope.set(scope)
        try:
            for turn in itertools.count(1):
                if turn % _MAX_TURNS == 0:
                    await asyncio.sleep(0)
                try:
                    work = next(generator)
                except StopIteration as stop:
                    return stop.value
                if isinstance(work, (list, tuple)):
                    await self._run_tasks(work, result)
                elif isinstance(work, ParallelProcess):
                    await self._run_branches(work, result, scope)
                else:
                    raise InvalidYieldError(
                        f"a controller yielded {type(work).__name__}; yield a list of Task or a ParallelProcess"
                    )
        finally:
            generator.close()
            if self._scope_listeners:
                await self._end_scope(scope)

    async def _run_branches(self, process: ParallelProcess, result: ScaffoldingResult, scope: ExecutionScope) -> None:
        paths = getattr(process, "branch_paths", None)
        scopes = (
            [scope.child(index) for index in range(len(process.sub_gens))]
            if paths is None
            else [scope.with_branch_path(path) for path in paths]
        )
        await _all_or_none(
            [
                asyncio.create_task(self.drive(branch, result, child))
                for branch, child in zip(process.sub_gens, scopes, strict=True)
            ]
        )

    async def _run_tasks(self, tasks: list[Any] | tuple[Any, ...], result: ScaffoldingResult) -> None:
        for task in tasks:
            if not isinstance(task, Task):
                raise InvalidYieldError(
                    f"a controller yielded a list with a {type(task).__name__} in it; yield a list of Task"
                )
            if task.streaming_output_flag and not isinstance(task.streaming_output_list, _StreamSink):
                task.streaming_output_list = _StreamSink(result, task.streaming_output_list)
        if len(tasks) == 1:
            await self._run_task(tasks[0])
        elif tasks:
            await _all_or_none([asyncio.create_task(self._run_task(task)) for task in tasks])

    async def _run_task(self, task: Task) -> None:
        worker = self.by_tag.get(task.worker_tag)
        if worker is None:
            known = ", ".join(sorted({str(getattr(tag, "value", tag)) for tag in self.by_tag})) or "none"
            raise UnknownWorkerTagError(
                f"a {type(task).__name__} asks for worker {_tag_name(task)!r}; this stack has: {known}"
            )
        try:
            status = await worker.run_task(task)
        except Exception as error:
            _raise_task_error(task, worker, f"{type(error).__name__}: {error}", error)
        if status is TaskStatus.WORKER_NOT_SUPPORTED:
            _raise_task_error(task, worker, "the worker has no handler for this type of task")
        if status is TaskStatus.WORKER_EXECEPTION:
            _raise_task_error(task, worker, "the worker reported an exception; read its log")

    async def _end_scope(self, scope: ExecutionScope) -> None:
        for worker in self._scope_listeners:
            try:
                await worker.on_scope_end(scope.scope_id)
            except Exception as error:  # the request has ended: nobody can act on it but the loop's handler
                message = f"{type(worker).__name__}.on_scope_end failed"
                asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})


class _ByTag(dict[Any, Worker]):
    """Finds a worker by its key, by the key's value, and by members of other enums with that value."""

    def __init__(self, workers: Mapping[Any, Worker]) -> None:
        super().__init__(workers)
        for tag, worker in workers.items():
            if isinstance(tag, Enum):
                self.setdefault(tag.value, worker)

    def get(self, tag: Any, default: Any = None) -> Any:
        worker = dict.get(self, tag)
        return dict.get(self, tag.value, default) if worker is None and isinstance(tag, Enum) else worker


def _listens_to_scopes(worker: Worker) -> bool:
    handler = getattr(type(worker), "on_scope_end", None)  # younger than 1.2
    return handler is not None and handler is not getattr(Worker, "on_scope_end", None)


async def _all_or_none(tasks: list[asyncio.Task[Any]]) -> None:
    """Wait for all; when one fails or the wait is cancelled, cancel the others, wait for them, and raise."""
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _tag_name(task: Task) -> str:
    return str(getattr(task.worker_tag, "value", task.worker_tag))


def _raise_task_error(task: Task, worker: Worker, reason: str, cause: Exception | None = None) -> NoReturn:
    branch = current_scope.get()
    where = f" in branch {list(branch.branch_path)}" if branch is not None and branch.branch_path else ""
    message = f"{type(task).__name__} for worker {_tag_name(task)!r} ({type(worker).__name__}){where} failed: {reason}"
    raise TaskError(message, task) from cause
