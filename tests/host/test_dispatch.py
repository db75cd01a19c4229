"""Dispatch of work: tags, branches, scopes, seeds, streams and task collections."""

import asyncio
import copy
import threading
from enum import Enum
from typing import ClassVar

import pytest

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.errors import RequestCancelledError, RequestError, RequestTimeoutError, TaskError
from scaffolding_ext.host import dispatch
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.host.request import abort
from scaffolding_ext.protocol import (
    Controller,
    GenerationTask,
    ParallelProcess,
    StreamGenerationTask,
    Task,
    TaskCollection,
    TaskStatus,
    current_scope,
    with_task_collection,
)
from scaffolding_ext.protocol.meta import Purpose
from scaffolding_ext.protocol.tasks import LimitedStep
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.testing import Gate, ScriptedWorker

WAIT = 30.0  # seconds until a hanging test fails; nothing waits that long when all is well


class Boom(Exception):
    pass


class ScopeListener(ScriptedWorker):
    """Remembers the scopes that have ended."""

    def __init__(self, before=None):
        super().__init__(lambda task: task.input_str.upper(), before=before)
        self.ended_scopes = []

    async def on_scope_end(self, scope_id):
        self.ended_scopes.append(scope_id)


class FanOut(BaseController):
    """Runs a sub-controller on copies of its task in parallel and joins the outputs."""

    def __init__(self, inner, width):
        super().__init__()
        self.inner = inner
        self.width = width

    def run(self, task, **kwargs):
        tasks = [GenerationTask(input_str=f"{task.input_str}{i}") for i in range(self.width)]
        yield ParallelProcess([self.inner.clone() for _ in tasks], [[t] for t in tasks], [{} for _ in tasks])
        task.output_str = "+".join(t.output_str for t in tasks)


def test_a_failing_branch_cancels_its_siblings(host, echo):
    gate = Gate()

    async def before(task):
        if task.input_str == "p1":
            gate.wait_for(1)
            raise Boom
        await gate(task)

    with host(FanOut(NativeGenerationController(), 2), echo(before)) as llm:
        with pytest.raises(TaskError, match=r"branch \[1\]"):
            llm.generate("p")
        gate.wait_for_cancelled(1)


def test_unknown_tag_lists_the_known_ones(host):
    class Lost(Controller):
        def process(self, tasks, **kwargs):
            tasks[0].worker_tag = "nowhere"
            yield tasks

    with host(Lost()) as llm, pytest.raises(RequestError, match="'nowhere'; this stack has: generation"):
        llm.generate("x")


@pytest.mark.parametrize("work", [None, 5, "text", [object()], GenerationTask()])
def test_a_bad_yield(work, host):
    class Odd(Controller):
        def process(self, tasks, **kwargs):
            yield work

    with host(Odd()) as llm, pytest.raises(RequestError, match="yield a list of Task"):
        llm.generate("x")


def test_requests_of_one_name_have_scopes_of_their_own(host):
    gate = Gate()
    worker = ScopeListener(gate)
    with host(worker=worker) as llm:
        first, second = (llm.generate_async("x", sample_id="same") for _ in range(2))
        gate.wait_for(2)
        gate.open()
        first.result(WAIT), second.result(WAIT)
    assert len(set(worker.ended_scopes)) == 2


def test_branches_run_concurrently_and_scopes_end(host):
    gate, scopes = Gate(), []

    async def before(task):
        scopes.append(current_scope.get().branch_path)
        await gate(task)

    worker = ScopeListener(before)
    with host(FanOut(FanOut(NativeGenerationController(), 2), 2), worker) as llm:
        result = llm.generate_async("p", sample_id="s")
        gate.wait_for(4)  # all four at once
        gate.open()
        assert result.result(WAIT).outputs[0].text == "P00+P01+P10+P11"
        scope = result.id
    assert sorted(scopes) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert set(worker.ended_scopes) == {f"{scope}:{path}" for path in ("0", "1", "0.0", "0.1", "1.0", "1.1")} | {scope}


def test_a_scope_ends_though_its_controller_raises_while_it_is_closed(host):
    class Sour(BaseController):
        def run(self, task, **kwargs):
            task.worker_tag = WorkerTag.GENERATION
            try:
                yield [task]
            finally:
                raise Boom

    gate = Gate()
    worker = ScopeListener(gate)
    with host(Sour(), worker) as llm:
        result = llm.generate_async("x")
        gate.wait_for(1)
        llm.loop.call_soon_threadsafe(abort, result, RequestTimeoutError("its time is over"))
        with pytest.raises(RequestTimeoutError):
            result.result(WAIT)
    assert worker.ended_scopes == [result.id]


def test_a_failing_scope_listener_does_not_fail_the_request(host):
    class Leaky(ScopeListener):
        async def on_scope_end(self, scope_id):
            raise Boom

    reported = threading.Event()
    with host(worker=Leaky()) as llm:
        llm.loop.call_soon_threadsafe(llm.loop.set_exception_handler, lambda loop, context: reported.set())
        assert llm.generate("x").outputs[0].text == "X"
        assert reported.wait(WAIT)


def test_workers_keyed_by_another_enum_are_found_bound_or_not(echo):
    class TheirTag(Enum):
        GENERATION = "generation"

    class Theirs(Controller):
        def process(self, tasks, **kwargs):
            tasks[0].worker_tag = TheirTag.GENERATION
            yield tasks

    for controller in (NativeGenerationController(), Theirs()):
        for key in ("generation", WorkerTag.GENERATION, TheirTag.GENERATION):
            with ScaffoldingLlm(controller, {key: echo()}) as llm:
                assert llm.generate("x").outputs[0].text == "X"


class Unseeded(Controller):
    """Leaves seeds to the host, as upstream's controllers do; sends its task twice, then two copies of it at once."""

    def process(self, tasks, **kwargs):
        (task,) = tasks
        task.worker_tag = "generation"
        yield tasks
        yield tasks
        yield [copy.deepcopy(task), copy.deepcopy(task)]


class SeedNotingWorker(ScriptedWorker):
    def __init__(self, reply="x"):
        super().__init__(reply)
        self.seeds = []

    async def run_task(self, task):
        self.seeds.append(task.seed)
        return await super().run_task(task)


def seeds_of(controller, seed=7):
    worker = SeedNotingWorker()
    with ScaffoldingLlm(controller, {"generation": worker}, seed=seed) as llm:
        llm.generate("p", sample_id="s")
    return worker.seeds


def test_tasks_without_a_seed_get_one_each_time_that_they_are_sent():
    seeds = seeds_of(Unseeded())
    assert len(set(seeds)) == 4
    assert None not in seeds
    assert seeds_of(Unseeded()) == seeds
    assert seeds_of(Unseeded(), seed=None) == [None] * 4


def test_a_seed_that_a_controller_sets_stays():
    class Seeded(Controller):
        def process(self, tasks, **kwargs):
            tasks[0].worker_tag, tasks[0].seed = "generation", 3
            yield tasks
            yield tasks

    assert seeds_of(Seeded()) == [3, 3]


def test_a_stream_goes_on_with_the_seed_that_it_began_with(host):
    class Streaming(Controller):
        def process(self, tasks, **kwargs):
            stream = StreamGenerationTask(worker_tag="generation", input_str="p")
            while not stream.end_flag:
                yield [stream]
            tasks[0].output_str = stream.output_str

    worker = SeedNotingWorker("abc")
    with host(Streaming(), worker, seed=7) as llm:
        assert llm.generate("p").outputs[0].text == "abc"
    assert len(worker.seeds) == 3
    assert len(set(worker.seeds)) == 1


def test_a_task_that_streams_to_the_caller_can_be_copied(host):
    class Copying(Controller):
        def process(self, tasks, **kwargs):
            (task,) = tasks
            task.worker_tag, task.streaming_output_flag = "generation", True
            yield tasks
            twin = copy.deepcopy(task)
            assert twin.streaming_output_list == []
            yield [twin]

    with host(Copying()) as llm:
        assert llm.generate("x").outputs[0].text == "X"


class Limited(BaseController):
    """Asks for tasks in a step that has so many seconds, and then says what came of them."""

    def __init__(self, seconds, prompts=("a", "b")):
        super().__init__()
        self.seconds, self.prompts, self.steps = seconds, prompts, []  # one list for all clones

    def run(self, task, **kwargs):
        tag = WorkerTag.GENERATION
        step = LimitedStep([GenerationTask(worker_tag=tag, input_str=prompt) for prompt in self.prompts], self.seconds)
        self.steps.append(step)
        yield step
        task.output_str = "+".join(str(each.output_str) for each in step)


def text_of(controller, worker):
    with ScaffoldingLlm(controller, {"generation": worker}) as llm:
        return llm.generate("x", timeout=WAIT).outputs[0].text


def test_a_step_that_is_done_in_time_is_as_any_other():
    controller = Limited(WAIT)
    assert text_of(controller, ScopeListener()) == "A+B"
    assert not controller.steps[0].is_given_up
    assert text_of(Limited(WAIT, prompts=()), ScopeListener()) == ""


def test_a_step_whose_time_is_over_is_given_up_and_what_was_done_by_then_stays():
    gate = Gate()

    async def hold(task):
        if task.input_str == "a":
            await gate(task)

    controller = Limited(0.05)
    assert text_of(controller, ScopeListener(hold)) == "None+B"
    gate.wait_for_cancelled()
    assert controller.steps[0].is_given_up


def test_without_time_nothing_is_run():
    worker = ScopeListener()
    controller = Limited(0)
    assert text_of(controller, worker) == "None+None"
    assert worker.tasks == []
    assert controller.steps[0].is_given_up


def test_a_task_that_fails_in_time_fails_the_request():
    with pytest.raises(TaskError, match="out of luck"):
        text_of(Limited(WAIT), ScriptedWorker(lambda task: Boom("out of luck")))


def test_a_cancelled_request_cancels_its_limited_step():
    gate = Gate()
    with ScaffoldingLlm(Limited(WAIT), {"generation": ScopeListener(gate)}) as llm:
        result = llm.generate_async("x")
        gate.wait_for(2)
        result.cancel()
        gate.wait_for_cancelled(2)
        assert isinstance(result.exception(WAIT), RequestCancelledError)


@pytest.mark.parametrize("fails", [False, True])
def test_a_worker_that_goes_on_although_it_was_cancelled_works_for_nobody(monkeypatch, fails):
    monkeypatch.setattr(dispatch, "GRACE_SECONDS", 0.05)
    release, is_over = threading.Event(), threading.Event()

    class Stubborn(ScriptedWorker):
        async def _generate(self, task):
            while not release.is_set():
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    continue
            is_over.set()
            if fails:
                raise Boom("late")
            task.output_str = "late"
            return TaskStatus.SUCCESS

        task_handlers: ClassVar = {GenerationTask: _generate}

    with ScaffoldingLlm(Limited(0.05, prompts=("a",)), {"generation": Stubborn("x")}) as llm:
        result = llm.generate("x", timeout=WAIT)
        assert result.outputs[0].text == "None"
        assert result.program.ledger.by_purpose.get(Purpose.CHAIN) is None
        release.set()
        assert is_over.wait(WAIT)


def test_task_collections_are_per_request(host):
    class Counter(TaskCollection):
        def __init__(self):
            super().__init__()
            self.num_tasks = 0

        def after_yield(self, tasks: list[Task]):
            self.num_tasks += len(tasks)

    counted = with_task_collection("counter", Counter)(type("Counted", (FanOut,), {}))
    with host(counted(NativeGenerationController(), 3)) as llm:
        results = llm.generate(["a", "b"])
        assert [r.task_collections["counter"].num_tasks for r in results] == [3, 3]
