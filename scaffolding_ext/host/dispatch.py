"""Run the work that controllers yield: tasks on the workers of their tags, branches in parallel."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from scaffolding_ext.errors import RequestError, TaskError
from scaffolding_ext.protocol import (
    ChatTask,
    ExecutionScope,
    GenerationTask,
    ParallelProcess,
    Task,
    TaskStatus,
    Worker,
    current_scope,
)
from scaffolding_ext.protocol.meta import Meta, meta_of, note
from scaffolding_ext.protocol.tasks import LimitedStep, RollingBranches
from scaffolding_ext.protocol.worker import BaseWorker, tag_name, tag_names, worker_for
from scaffolding_ext.request.results import ScaffoldingResult

if TYPE_CHECKING:
    from scaffolding_ext.request.program import Program

GRACE_SECONDS = 5.0  # time for a worker to react to cancellation before the caller continues anyway
_MAX_TURNS = 32  # of one generator before others run: workers that answer at once never suspend it


class _ToCaller:
    """Replaces a task's `streaming_output_list` and passes each output that a worker appends to the caller."""

    def __init__(self, result: ScaffoldingResult) -> None:
        self._result = result

    def append(self, output: Any) -> None:
        self._result.push(output)

    def extend(self, outputs: Iterable[Any]) -> None:
        for output in outputs:
            self._result.push(output)

    def __iter__(self) -> Iterator[Any]:
        return iter(())  # everything has been passed on

    def __len__(self) -> int:
        return 0

    def __reduce__(self) -> tuple[type[list[Any]], tuple[()]]:
        return list, ()  # a copy of the task starts with a fresh list


class Dispatcher:
    """Drives controllers' generators on a set of workers.

    Args:
        workers: Workers by tag; tags match by value, see `worker_for`.
    """

    def __init__(self, workers: Mapping[Any, Worker]) -> None:
        self._workers = workers
        self._found: dict[Any, Worker] = {}
        self._scope_listeners = [worker for worker in each_once(workers) if _listens_to_scopes(worker)]

    async def drive(self, generator: Any, result: ScaffoldingResult, scope: ExecutionScope) -> Any:
        """Run a controller's generator to its end, in a scope, and return its value.

        Args:
            generator: Yields lists of tasks and ParallelProcesses.
            result: Receives the streamed parts of the tasks.
            scope: Current scope of all requested work; it ends with the generator.

        Raises:
            RequestError: The generator yielded something else.
            RequestError: A task names a missing worker.
            TaskError: A task failed.
        """
        current_scope.set(scope)
        num_turns = 0
        rolling: dict[int, _Rolling] = {}
        try:
            while True:
                num_turns += 1
                if num_turns % _MAX_TURNS == 0:
                    await asyncio.sleep(0)
                if result.is_stopping:  # even if a worker swallowed the cancellation
                    raise asyncio.CancelledError
                try:
                    work = next(generator)
                except StopIteration as stop:
                    generator = None
                    return stop.value
                if isinstance(work, (list, tuple)):
                    for task in work:
                        self._prepare(task, result)
                    if isinstance(work, LimitedStep):
                        await self._run_in_time(work)
                    elif len(work) == 1:
                        await self._run_task(work[0])
                    elif not work:  # a busy controller lets other work run
                        await asyncio.sleep(0)
                    else:
                        await _all_or_none(map(self._run_task, work))
                elif isinstance(work, RollingBranches):
                    if id(work) not in rolling:
                        rolling[id(work)] = _Rolling(work)
                    held = rolling[id(work)]
                    held.start(self._branches(work, result, scope))
                    await held.wait()
                elif isinstance(work, ParallelProcess):
                    await _all_or_none([branch for _, branch in self._branches(work, result, scope)])
                else:
                    raise RequestError(
                        f"a controller yielded {type(work).__name__}; yield a list of Task or a ParallelProcess"
                    )
        finally:
            try:
                for held in rolling.values():
                    await _end(held.running)
                if generator is not None:  # something is raised already, and is what the caller is told
                    _close(generator)
            finally:
                if self._scope_listeners:
                    await self._end_scope(scope)

    def _branches(
        self, process: ParallelProcess, result: ScaffoldingResult, scope: ExecutionScope
    ) -> list[tuple[int, Coroutine[Any, Any, Any]]]:
        """Return the work of a step's branches, each with the last number of its path."""
        paths = getattr(process, "branch_paths", None)
        scopes = (
            [scope.child(index) for index in range(len(process.sub_gens))]
            if paths is None
            # Some releases have no method for a whole path.
            else [ExecutionScope(scope.request_id, tuple(path)) for path in paths]
        )
        return [
            (child.branch_path[-1], self.drive(branch, result, child))
            for branch, child in zip(process.sub_gens, scopes, strict=True)
        ]

    async def _run_in_time(self, step: LimitedStep) -> None:
        """Run a step's tasks until its time is over, then cancel the rest.

        A worker that ignores cancellation beyond the grace keeps running; its result is dropped.
        """
        if step.seconds <= 0:
            step.is_given_up = bool(step)
            return
        running = asyncio.create_task(_all_or_none(map(self._run_task, step)))
        try:
            await asyncio.wait((running,), timeout=step.seconds)
            if not running.done():
                step.is_given_up = True
                running.cancel()
                await asyncio.wait((running,), timeout=GRACE_SECONDS)
        except asyncio.CancelledError:
            await _end([running])
            raise
        if not step.is_given_up:
            running.result()
        elif running.done():
            _forget(running)
        else:
            running.add_done_callback(_forget)

    def _prepare(self, task: Any, result: ScaffoldingResult) -> None:
        if not isinstance(task, Task):
            raise RequestError(f"a controller yielded a list with a {type(task).__name__} in it; yield a list of Task")
        if type(task) is ChatTask:
            task.enable_token_counting = True  # the ledger counts upstream's chats by it
        if task.streaming_output_flag and not isinstance(task.streaming_output_list, _ToCaller):
            to_caller: Any = _ToCaller(result)
            to_caller.extend(task.streaming_output_list)  # a controller may have added some
            task.streaming_output_list = to_caller
        program = result.program
        if program.seeds.seed is not None and isinstance(task, GenerationTask):
            notes = meta_of(task)
            if task.seed is None or task.seed == notes.host_seed:  # not set by a controller
                _seed(task, program, notes)

    async def _run_task(self, task: Task) -> None:
        try:
            worker = self._found[task.worker_tag]
        except KeyError:
            worker = self._find(task)
        try:
            status = await worker.run_task(task)
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            _raise_task_error(task, worker, "the worker cancelled the task", error)
        except Exception as error:
            _raise_task_error(task, worker, f"{type(error).__name__}: {error}", error)
        if status is TaskStatus.WORKER_NOT_SUPPORTED:
            _raise_task_error(task, worker, "the worker has no handler for this type of task")
        if status is TaskStatus.WORKER_EXECEPTION:
            _raise_task_error(task, worker, "the worker reported an exception; read its log")

    def _find(self, task: Task) -> Worker:
        worker = worker_for(self._workers, task.worker_tag)
        if worker is None:
            raise RequestError(
                f"a {type(task).__name__} asks for worker {tag_name(task.worker_tag)!r}; "
                f"this stack has: {tag_names(self._workers)}"
            )
        self._found[task.worker_tag] = worker
        return worker

    async def _end_scope(self, scope: ExecutionScope) -> None:
        for worker in self._scope_listeners:
            try:
                await worker.on_scope_end(scope.scope_id)
            except Exception as error:
                _report(f"{type(worker).__name__}.on_scope_end failed", error)


def _close(generator: Any) -> None:
    try:
        generator.close()
    except Exception as error:
        _report("a controller failed while it was closed", error)


def _report(message: str, error: Exception) -> None:
    """Tell the loop's handler, since the request has ended."""
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})


def _is_cancelled() -> bool:
    """Return True if somebody cancels the current task; Python 3.10 does not tell."""
    current = asyncio.current_task()
    return current is None or not hasattr(current, "cancelling") or current.cancelling() > 0


class _Rolling:
    """The running branches of a `RollingBranches` step, by the last number of their paths."""

    def __init__(self, step: RollingBranches) -> None:
        self.running: dict[asyncio.Task[Any], int] = {}
        self._step = step
        self._woken: asyncio.Future[None] | None = None
        step.wake = self._wake

    def start(self, branches: Iterable[tuple[int, Coroutine[Any, Any, Any]]]) -> None:
        self.running.update({asyncio.create_task(branch): number for number, branch in branches})
        self._step.sub_gens, self._step.branch_paths = [], []

    async def wait(self) -> None:
        if self._step.is_closing:
            await self._cancel()
            return
        loop, seconds = asyncio.get_running_loop(), self._step.seconds
        due = None if seconds is None else loop.time() + seconds
        while self.running and not self._collect():
            left = None if due is None else due - loop.time()
            if left is not None and left <= 0:
                return
            self._woken = loop.create_future()
            await asyncio.wait((*self.running, self._woken), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            woken, self._woken = self._woken, None
            if woken.done():
                return

    def _collect(self) -> bool:
        """Take out branches that have ended; return True if there are any."""
        ended = [branch for branch in self.running if branch.done()]
        for branch in ended:
            number = self.running.pop(branch)
            failure = branch.exception()
            if isinstance(failure, Exception):
                self._step.failures[number] = failure
            elif failure is not None:
                raise failure
        return bool(ended)

    async def _cancel(self) -> None:
        over = asyncio.create_task(_end(self.running))
        await asyncio.wait((over,), timeout=GRACE_SECONDS)
        self.running = {}

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)


def _forget(running: asyncio.Future[Any]) -> None:
    """Retrieve the outcome of dropped work, so that the loop does not report an unread error."""
    if not running.cancelled():
        running.exception()


def each_once(workers: Mapping[Any, Worker]) -> list[Worker]:
    """Return the workers in the mapping's order, without duplicates."""
    return list({id(worker): worker for worker in workers.values()}.values())


def _listens_to_scopes(worker: Worker) -> bool:
    handler = getattr(type(worker), "on_scope_end", None)  # newer than 1.2
    return handler not in (None, BaseWorker.on_scope_end, getattr(Worker, "on_scope_end", None))


def _seed(task: GenerationTask, program: Program, notes: Meta) -> None:
    """Give a task without a controller's seed the program's next one; upstream's controllers set none.

    A task that is sent again, or copied and sent, gets another seed: pieces of a chain or samples of a vote with one
    seed would repeat each other's randomness.
    """
    if getattr(task, "request_handle", None) is not None:  # a running stream keeps its seed
        return
    task.seed = program.seeds.next()
    note(task, host_seed=task.seed)


async def _all_or_none(work: Iterable[Coroutine[Any, Any, Any]]) -> None:
    """Run coroutines in parallel. If one fails or the wait is cancelled, cancel and await the others, and raise."""
    running = [asyncio.create_task(each) for each in work]
    try:
        await asyncio.gather(*running)
    except (Exception, asyncio.CancelledError):
        await _end(running)
        raise


async def _end(running: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait for them, even if the wait is cancelled again: none of a request's work outlives it."""
    left = set(running)
    while left:
        for each in left:
            each.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            _, left = await asyncio.wait(left)
    for each in running:
        _forget(each)


def _raise_task_error(task: Task, worker: Worker, reason: str, cause: BaseException | None = None) -> NoReturn:
    branch = current_scope.get()
    where = f" in branch {list(branch.branch_path)}" if branch is not None and branch.branch_path else ""
    tag = tag_name(task.worker_tag)
    message = f"{type(task).__name__} for worker {tag!r} ({type(worker).__name__}){where} failed: {reason}"
    raise TaskError(message, task) from cause
