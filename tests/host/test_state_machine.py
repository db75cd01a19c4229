"""The host under random programs: whatever is submitted, cancelled, late or at fault, nothing is left at the end.

Programs, time-outs and cancels race with each other on the host's thread, so a run may end in several ways. Each way
that is asserted here must hold for all of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from scaffolding_ext.controllers.base import BaseController, finish
from scaffolding_ext.controllers.needs import Needs
from scaffolding_ext.errors import (
    NoOutputError,
    RequestCancelledError,
    RequestTimeoutError,
    ShutdownError,
    TaskError,
)
from scaffolding_ext.host import dispatch
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import (
    ControllerGenerator,
    GenerationTask,
    ParallelProcess,
    StreamGenerationTask,
    TaskStatus,
    current_scope,
)
from scaffolding_ext.protocol.tasks import LimitedStep, RollingBranches
from scaffolding_ext.protocol.worker import BaseWorker
from scaffolding_ext.request.program import Progress
from scaffolding_ext.request.results import ScaffoldingResult
from scaffolding_ext.request.seeds import branch_path
from scaffolding_ext.scheduling import Fifo

WIDTH = 3  # requests that run at once


class Step(NamedTuple):
    """The work of a program: tasks by the name of their worker, or branches, each a list of steps."""

    kind: str
    workers: tuple[str, ...] = ()
    branches: tuple[tuple[Any, ...], ...] = ()


class HoldingWorker(BaseWorker):
    """Holds a block for each scope that it served, until the scope ends."""

    model = None

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()
        self.num_running = 0

    async def _run(self, task: GenerationTask) -> TaskStatus:
        scope = current_scope.get()
        assert scope is not None
        self.held[scope.scope_id] += 1
        self.num_running += 1
        try:
            await self.serve()
        finally:
            self.num_running -= 1
        task.output_str, task.output_tokens = "a", [1]
        if isinstance(task, StreamGenerationTask):
            task.end_flag = task.cancel_flag
        return TaskStatus.SUCCESS

    async def serve(self) -> None:
        """Answers at once."""

    async def on_scope_end(self, scope_id: str) -> None:
        del self.held[scope_id]

    task_handlers: ClassVar[dict[Any, Any]] = {GenerationTask: _run, StreamGenerationTask: _run}


class LateWorker(HoldingWorker):
    """Answers when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: set[asyncio.Event] = set()

    async def serve(self) -> None:
        let = asyncio.Event()
        self.waiting.add(let)
        try:
            await let.wait()
        finally:
            self.waiting.discard(let)

    def answer(self) -> None:
        for let in self.waiting:
            let.set()


class SilentWorker(HoldingWorker):
    """Never answers."""

    async def serve(self) -> None:
        await asyncio.Event().wait()


class StubbornWorker(HoldingWorker):
    """Answers when it is cancelled, as if nobody had cancelled it."""

    async def serve(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)


class FaultyWorker(HoldingWorker):
    """Fails."""

    async def serve(self) -> None:
        await asyncio.sleep(0)
        raise OSError("out of order")


class ScriptedController(BaseController):
    """Does what its program says."""

    needs = Needs(tags=())

    def run(self, task: GenerationTask, program: tuple[Step, ...] = (), **kwargs: Any) -> ControllerGenerator:
        yield from self._follow(program)
        if not any(step.kind == "no output" for step in program):
            finish(task, "done", None)

    def _follow(self, program: tuple[Step, ...]) -> ControllerGenerator:
        for step in program:
            tasks = [GenerationTask(input_str="?", worker_tag=worker) for worker in step.workers]
            if step.kind == "tasks":
                yield tasks
            elif step.kind == "stream":
                yield [StreamGenerationTask(input_str="?", worker_tag=worker) for worker in step.workers]
            elif step.kind == "limited":
                yield LimitedStep(tasks, 0.001)
            elif step.kind == "branches":
                process = ParallelProcess([], [], [])
                process.sub_gens = [self._follow(branch) for branch in step.branches]
                yield process
            elif step.kind == "rolling":
                yield from self._roll(step)
            elif step.kind == "raise":
                raise ValueError("the controller is at fault")

    def _roll(self, step: Step) -> ControllerGenerator:
        """Start a branch at each wait, wait in vain once, and cancel what still runs."""
        process = RollingBranches()
        for number, branch in enumerate(step.branches):
            process.sub_gens.append(self._follow(branch))
            process.branch_paths.append((*branch_path(), number))
            process.seconds = 0.001 if number == 0 else None
            yield process
            for failure in process.failures.values():
                raise failure
            yield []
        process.is_closing = True
        yield process


class CountingPolicy(Fifo):
    """Counts how often each program has ended."""

    def __init__(self) -> None:
        self.num_ends: Counter[int] = Counter()

    def learn(self, progress: Progress) -> None:
        self.num_ends[progress.number] += 1


class Submitted(NamedTuple):
    """A request with what it was given."""

    result: ScaffoldingResult
    program: tuple[Step, ...]
    has_timeout: bool


def steps_of(program: tuple[Step, ...], cancelled: bool = True) -> Iterator[Step]:
    """The steps of a program, with or without those that it may cancel."""
    for step in program:
        yield step
        for branch in step.branches if cancelled or step.kind != "rolling" else ():
            yield from steps_of(branch, cancelled)


WORKERS = st.lists(
    st.sampled_from(["instant", "instant", "late", "silent", "stubborn", "faulty"]), min_size=1, max_size=3
)
KINDS = st.sampled_from(["tasks", "tasks", "stream", "limited", "raise", "no output"])
PLAIN = st.tuples(KINDS, WORKERS.map(tuple)).map(lambda pair: Step(*pair))


def branching(inner: st.SearchStrategy[Step]) -> st.SearchStrategy[Step]:
    branches = st.lists(st.lists(inner, max_size=2).map(tuple), max_size=3).map(tuple)
    kinds = st.sampled_from(["branches", "rolling"])
    return st.tuples(kinds, branches).map(lambda pair: Step(pair[0], branches=pair[1]))


PROGRAM = st.lists(st.recursive(PLAIN, branching, max_leaves=4), max_size=3).map(tuple)


class HostMachine(RuleBasedStateMachine):
    """Submits, cancels, lets late workers answer and shuts down, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.workers: dict[str, HoldingWorker] = {
            "instant": HoldingWorker(),
            "late": LateWorker(),
            "silent": SilentWorker(),
            "stubborn": StubbornWorker(),
            "faulty": FaultyWorker(),
        }
        self.policy = CountingPolicy()
        self.llm = ScaffoldingLlm(ScriptedController(), self.workers, WIDTH, seed=0, scheduling=self.policy)
        self.submitted: list[Submitted] = []
        self.cancelled: set[str] = set()
        self.is_shut_down = False

    @rule(program=PROGRAM, timeout=st.sampled_from([None, None, 1e-6, 0.001]))
    def submit(self, program: tuple[Step, ...], timeout: float | None) -> None:
        if self.is_shut_down:
            with pytest.raises(ShutdownError):
                self.llm.generate_async("?", program=program)
            return
        result = self.llm.generate_async("?", timeout=timeout, program=program)
        self.submitted.append(Submitted(result, program, timeout is not None))

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        result = data.draw(st.sampled_from(self.submitted)).result
        self.cancelled.add(result.id)
        result.cancel()

    @rule()
    def let_late_ones_answer(self) -> None:
        late = self.workers["late"]
        assert isinstance(late, LateWorker)
        if not self.llm.loop.is_closed():
            self.llm.loop.call_soon_threadsafe(late.answer)

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def wait_a_moment(self, data: st.DataObject) -> None:
        result = data.draw(st.sampled_from(self.submitted)).result
        try:
            result.exception(0.001)
        except TimeoutError:
            return  # it waits for a worker, and the wait itself must leave nothing

    @precondition(lambda self: len(self.submitted) > 4)
    @rule()
    def shut_down(self) -> None:
        self.is_shut_down = True
        self.llm.shutdown()

    @invariant()
    def no_more_run_than_may(self) -> None:
        assert len(self.llm._running) <= WIDTH

    def teardown(self) -> None:
        self.is_shut_down = True
        self.llm.shutdown()
        errors = [each.result.exception(30) for each in self.submitted]
        for each, error in zip(self.submitted, errors, strict=True):
            self.check_outcome(each, error)
            assert each.result._wakers == ()
            assert self.policy.num_ends[each.result.program.identity.number] == 1
        assert not self.llm._running
        assert not len(self.llm._waiting)
        assert not self.llm._inbox
        assert not asyncio.all_tasks(self.llm.loop)
        for worker in self.workers.values():
            assert not worker.held
            assert worker.num_running == 0

    def check_outcome(self, submitted: Submitted, error: BaseException | None) -> None:
        """The error names its cause; a request that ended well met none."""
        steps = list(steps_of(submitted.program))
        met = list(steps_of(submitted.program, cancelled=False))
        waited_for = {worker for step in met if step.kind in ("tasks", "stream") for worker in step.workers}
        asked = {worker for step in steps for worker in step.workers}
        kinds = {step.kind for step in steps}
        if error is None:
            assert submitted.result.outputs[0].text == "done"
            assert not waited_for & {"silent", "stubborn", "faulty"}
            assert "raise" not in {step.kind for step in met}
        elif isinstance(error, TaskError):
            assert "faulty" in asked
            assert "out of order" in str(error)
            assert isinstance(error.__cause__, OSError)
        elif isinstance(error, NoOutputError):
            assert "no output" in {step.kind for step in submitted.program}
        elif isinstance(error, RequestTimeoutError):
            assert submitted.has_timeout
        elif isinstance(error, RequestCancelledError):
            assert submitted.result.id in self.cancelled
        elif isinstance(error, ShutdownError):
            assert self.is_shut_down
        else:
            assert str(error) == "the controller is at fault"
            assert "raise" in kinds


def run_machine(num_runs: int, num_steps: int) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        HostMachine,
        settings=settings(
            max_examples=num_runs,
            stateful_step_count=num_steps,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "GRACE_SECONDS", 0.5)


def test_nothing_is_left_of_random_programs() -> None:
    run_machine(12, 25)


@pytest.mark.slow
def test_nothing_is_left_of_ten_thousand_random_steps() -> None:
    run_machine(250, 40)
