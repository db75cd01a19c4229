"""The host: results, failures, cancellation, time-outs, shutdown, branches and scopes, ordered by events."""

import asyncio
import threading
from typing import ClassVar

import pytest

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.native_generation import NativeGenerationController
from scaffolding_ext.errors import (
    CloneError,
    ConfigError,
    InvalidYieldError,
    NoOutputError,
    RequestCancelledError,
    RequestTimeoutError,
    ShutdownError,
    TaskError,
    UnknownWorkerTagError,
)
from scaffolding_ext.protocol import (
    Controller,
    GenerationTask,
    ParallelProcess,
    RewardTask,
    ScaffoldingOutput,
    Task,
    TaskCollection,
    TaskStatus,
    Worker,
    current_scope,
    with_task_collection,
)
from scaffolding_ext.runtime import ScaffoldingLlm
from scaffolding_ext.tasks import WorkerTag

WAIT = 30.0  # seconds until a hanging test fails; nothing waits that long when all is well


class EchoWorker(Worker):
    """Answers with the prompt in capitals; `before` may hold a task or make it fail."""

    def __init__(self, before=None):
        self.before = before
        self.seen = []
        self.ended_scopes = []
        self.is_shut_down = False

    async def _generate(self, task):
        self.seen.append(task)
        if self.before is not None:
            await self.before(task)
        task.output_str = task.input_str.upper()
        task.output_tokens = list(range(len(task.input_str)))
        return TaskStatus.SUCCESS

    async def on_scope_end(self, scope_id):
        self.ended_scopes.append(scope_id)

    def shutdown(self):
        self.is_shut_down = True

    task_handlers: ClassVar = {GenerationTask: _generate}


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


def host(controller=None, worker=None, **options):
    return ScaffoldingLlm(controller or NativeGenerationController(), {"generation": worker or EchoWorker()}, **options)


class Gate:
    """Holds tasks until it is opened, from the test's thread."""

    def __init__(self):
        self.arrived = threading.Semaphore(0)
        self.cancelled = threading.Semaphore(0)
        self._open = threading.Event()
        self._waiters = []

    async def __call__(self, task):
        future = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        self.arrived.release()
        if self._open.is_set():
            return
        try:
            await future
        except asyncio.CancelledError:
            self.cancelled.release()
            raise

    def wait_for(self, num_tasks):
        for _ in range(num_tasks):
            assert self.arrived.acquire(timeout=WAIT)

    def open(self):
        self._open.set()
        for future in self._waiters:
            future.get_loop().call_soon_threadsafe(lambda f=future: f.done() or f.set_result(None))


# ---- results


def test_generate_returns_upstreams_surface():
    with host() as llm:
        result = llm.generate("hello")
        assert result.outputs[0].text == "HELLO"
        assert result.finished
        assert result.result(timeout=0) is result
        assert [r.outputs[0].text for r in llm.generate(["a", "b"])] == ["A", "B"]


def test_usable_from_a_running_loop_and_from_other_threads():
    async def inside():
        result = llm.generate_async("loop")
        assert (await result).outputs[0].text == "LOOP"
        assert (await result.aresult()) is result

    with host() as llm:
        asyncio.run(inside())
        texts = []
        threads = [
            threading.Thread(target=lambda i=i: texts.append(llm.generate(f"t{i}").outputs[0].text)) for i in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
        assert sorted(texts) == ["T0", "T1", "T2", "T3"]


def test_result_times_out_without_stopping_the_request():
    gate = Gate()
    with host(worker=EchoWorker(gate)) as llm:
        result = llm.generate_async("x")
        gate.wait_for(1)
        with pytest.raises(TimeoutError, match="it goes on"):
            result.result(timeout=0)
        gate.open()
        assert result.result(WAIT).outputs[0].text == "X"


def test_per_request_kwargs_reach_process():
    class Suffixed(BaseController):
        def run(self, task, suffix="?", **kwargs):
            task.input_str += suffix
            task.worker_tag = WorkerTag.GENERATION
            yield [task]

    with host(Suffixed()) as llm:
        assert llm.generate("a").outputs[0].text == "A?"
        assert llm.generate("a", suffix="!").outputs[0].text == "A!"


def test_seeds_depend_on_run_sample_and_epoch_only():
    def seeds(**options):
        worker = EchoWorker()
        with host(FanOut(NativeGenerationController(), 3), worker, seed=7) as llm:
            llm.generate("p", **options)
        return sorted(task.seed for task in worker.seen)

    assert seeds(sample_id="s") == seeds(sample_id="s")
    assert len(set(seeds(sample_id="s"))) == 3
    assert not set(seeds(sample_id="s")) & set(seeds(sample_id="s", epoch=1))
    assert not set(seeds(sample_id="s")) & set(seeds(sample_id="t"))
    assert not set(seeds(sample_id="s")) & set(seeds(sample_id="s", seed=8))


def test_limit_of_parallel_requests_and_order_of_arrival():
    gate = Gate()
    worker = EchoWorker(gate)
    with host(worker=worker, max_parallel_requests=2) as llm:
        results = [llm.generate_async(str(i)) for i in range(5)]
        gate.wait_for(2)
        assert [task.input_str for task in worker.seen] == ["0", "1"]
        gate.open()
        assert [r.result(WAIT).outputs[0].text for r in results] == list("01234")
        assert [task.input_str for task in worker.seen] == list("01234")


def test_ten_thousand_requests():
    with host(max_parallel_requests=256) as llm:
        results = llm.generate([str(i) for i in range(10_000)])
        assert [r.outputs[0].text for r in results] == [str(i) for i in range(10_000)]


# ---- failures stay with their request


class Boom(Exception):
    pass


def failing_on(text):
    async def before(task):
        if task.input_str == text:
            raise Boom("out of luck")

    return before


def test_a_worker_error_raises_with_the_tasks_context_and_others_go_on():
    with host(worker=EchoWorker(failing_on("bad"))) as llm:
        bad, good = llm.generate_async("bad"), llm.generate_async("good")
        with pytest.raises(TaskError, match=r"GenerationTask for worker 'generation'.*Boom: out of luck") as caught:
            bad.result(WAIT)
        assert isinstance(caught.value.__cause__, Boom)
        assert caught.value.task.input_str == "bad"
        assert good.result(WAIT).outputs[0].text == "GOOD"
        with pytest.raises(TaskError):
            llm.generate(["good", "bad"])


def test_a_failing_branch_cancels_its_siblings():
    gate = Gate()

    async def before(task):
        if task.input_str == "p1":
            gate.arrived.acquire()
            raise Boom
        await gate(task)

    with host(FanOut(NativeGenerationController(), 2), EchoWorker(before)) as llm:
        with pytest.raises(TaskError, match=r"branch \[1\]"):
            llm.generate("p")
        assert gate.cancelled.acquire(timeout=WAIT)


@pytest.mark.parametrize("status", [TaskStatus.WORKER_NOT_SUPPORTED, TaskStatus.WORKER_EXECEPTION])
def test_a_bad_status_is_an_error_never_empty_text(status):
    class Declining(Worker):
        async def run_task(self, task):
            return status

    with host(worker=Declining()) as llm, pytest.raises(TaskError):
        llm.generate("x")


def test_unknown_tag_lists_the_known_ones():
    class Lost(Controller):
        def process(self, tasks, **kwargs):
            tasks[0].worker_tag = "nowhere"
            yield tasks

    with host(Lost()) as llm, pytest.raises(UnknownWorkerTagError, match="'nowhere'; this stack has: generation"):
        llm.generate("x")


@pytest.mark.parametrize("work", [None, 5, "text", [object()], GenerationTask()])
def test_a_bad_yield(work):
    class Odd(Controller):
        def process(self, tasks, **kwargs):
            yield work

    with host(Odd()) as llm, pytest.raises(InvalidYieldError, match="yield a list of Task"):
        llm.generate("x")


def test_a_failing_clone():
    class Unclonable(Controller):
        def clone(self):
            raise Boom("no copies")

    with host(Unclonable()) as llm, pytest.raises(CloneError, match="Boom: no copies"):
        llm.generate("x")


def test_no_output_is_an_error():
    class Silent(BaseController):
        def run(self, task, **kwargs):
            yield []

    class NoReturn(Controller):
        def generate(self, prompt, **kwargs):
            yield []

    with host(Silent()) as llm, pytest.raises(NoOutputError, match="Silent"):
        llm.generate("x")
    with host(NoReturn()) as llm, pytest.raises(NoOutputError, match="must return a ScaffoldingOutput"):
        llm.generate("x")


@pytest.mark.parametrize("failing_yield", range(5))
def test_a_fault_at_every_yield_runs_finally_and_frees_the_host(failing_yield):
    cleaned = threading.Event()

    class Chained(BaseController):
        def run(self, task, **kwargs):
            try:
                for step in range(5):
                    piece = GenerationTask(worker_tag="generation", input_str=f"{task.input_str}{step}")
                    yield [piece] if step % 2 else [piece, GenerationTask(worker_tag="generation", input_str="beside")]
                task.output_str = "done"
            finally:
                cleaned.set()

    with host(Chained(), EchoWorker(failing_on(f"bad{failing_yield}")), max_parallel_requests=1) as llm:
        with pytest.raises(TaskError):
            llm.generate("bad")
        assert cleaned.is_set()
        assert llm.generate("ok").outputs[0].text == "done"


# ---- stopping


def test_cancel_frees_the_slot_and_leaves_others_alone():
    gate = Gate()
    with host(worker=EchoWorker(gate), max_parallel_requests=2) as llm:
        first, second, third = (llm.generate_async(t) for t in "abc")
        gate.wait_for(2)
        first.cancel()
        with pytest.raises(RequestCancelledError):
            first.result(WAIT)
        gate.wait_for(1)  # the third one runs now
        gate.open()
        assert second.result(WAIT).outputs[0].text == "B"
        assert third.result(WAIT).outputs[0].text == "C"
        first.cancel()  # after the end: nothing happens


def test_cancel_while_waiting_for_a_slot():
    gate = Gate()
    with host(worker=EchoWorker(gate), max_parallel_requests=1) as llm:
        running, waiting = llm.generate_async("a"), llm.generate_async("b")
        gate.wait_for(1)
        waiting.cancel()
        with pytest.raises(RequestCancelledError):
            waiting.result(WAIT)
        gate.open()
        assert running.result(WAIT).outputs[0].text == "A"


def test_cancel_before_the_first_step_frees_the_slot():
    with host(max_parallel_requests=1) as llm:
        results = []

        def submit_and_cancel():  # on the host's own thread, so that nothing runs in between
            results.extend(llm.generate_async("x") for _ in range(3))
            llm._take_inbox()
            for result in results:
                llm._abort(result, RequestCancelledError("at once"))

        done = threading.Event()
        llm.loop.call_soon_threadsafe(lambda: (submit_and_cancel(), done.set()))
        assert done.wait(WAIT)
        for result in results:
            with pytest.raises(RequestCancelledError, match="at once"):
                result.result(timeout=2)  # well before the grace for stubborn workers
        assert llm.generate("y", timeout=WAIT).outputs[0].text == "Y"


def test_requests_of_one_name_have_scopes_of_their_own():
    gate, worker = Gate(), EchoWorker()
    worker.before = gate
    with host(worker=worker) as llm:
        first, second = (llm.generate_async("x", sample_id="same") for _ in range(2))
        gate.wait_for(2)
        gate.open()
        first.result(WAIT), second.result(WAIT)
    assert len(set(worker.ended_scopes)) == 2


def test_timeout_of_a_request():
    with host(worker=EchoWorker(Gate())) as llm:
        with pytest.raises(RequestTimeoutError, match=r"within 0\.01 s"):
            llm.generate("x", timeout=0.01)
        with pytest.raises(TimeoutError):
            llm.generate("x", timeout=0.01)


def test_shutdown_wakes_every_waiter():
    gate = Gate()
    llm = host(worker=EchoWorker(gate), max_parallel_requests=1)
    results = [llm.generate_async(t) for t in "abc"]
    gate.wait_for(1)
    llm.shutdown()
    for result in results:
        with pytest.raises(ShutdownError):
            result.result(WAIT)
    with pytest.raises(ShutdownError, match="make a new"):
        llm.generate("x")
    llm.shutdown()  # again: nothing happens


def test_shutdown_of_workers_is_the_owners_choice():
    owned, lent, told = EchoWorker(), EchoWorker(), EchoWorker()
    with host(worker=owned, owns_workers=True), host(worker=lent):
        pass
    host(worker=told).shutdown(shutdown_workers=True)
    assert (owned.is_shut_down, lent.is_shut_down, told.is_shut_down) == (True, False, True)


def test_a_worker_that_ignores_cancellation_does_not_hang_shutdown(monkeypatch):
    monkeypatch.setattr("scaffolding_ext.runtime._ABORT_GRACE_SECONDS", 0.01)
    started = threading.Event()

    async def stubborn(task):
        started.set()
        release = asyncio.get_running_loop().create_future()
        while not release.done():
            try:
                await asyncio.shield(release)
            except asyncio.CancelledError:
                asyncio.get_running_loop().call_later(0.05, lambda: release.done() or release.set_result(None))

    llm = host(worker=EchoWorker(stubborn))
    result = llm.generate_async("x")
    assert started.wait(WAIT)
    llm.shutdown()
    with pytest.raises(ShutdownError):
        result.result(WAIT)


# ---- streaming


def test_streaming_reaches_the_caller_while_it_is_generated():
    seen_first = threading.Event()

    class Typist(Worker):
        async def _generate(self, task):
            loop = asyncio.get_running_loop()
            for end in (1, 2):
                task.streaming_output_list.append(ScaffoldingOutput(task.input_str[:end], None))
                if end == 1:  # goes on only when the caller has the first part
                    assert await loop.run_in_executor(None, seen_first.wait, WAIT)
            task.output_str = task.input_str
            return TaskStatus.SUCCESS

        task_handlers: ClassVar = {GenerationTask: _generate}

    async def read():
        texts = []
        async for part in llm.generate_async("abc"):
            texts.append(part.outputs[0].text)
            seen_first.set()
        return texts

    with host(NativeGenerationController(streaming=True), Typist()) as llm:
        texts = asyncio.run(read())
    assert texts[0] == "a"
    assert texts[-1] == "abc"


def test_streaming_raises_the_requests_error():
    async def read():
        async for _ in llm.generate_async("bad"):
            pass

    with host(worker=EchoWorker(failing_on("bad"))) as llm, pytest.raises(TaskError):
        asyncio.run(read())


def test_one_stream_at_a_time_and_its_parts_give_way_to_the_result():
    gate = Gate()

    class Parts(EchoWorker):
        async def _generate(self, task):
            task.streaming_output_list.append(ScaffoldingOutput("part", None))
            await gate(task)
            task.output_str = "whole"

        task_handlers: ClassVar = {GenerationTask: _generate}

    async def read():
        result = llm.generate_async("x")
        first = aiter_of(result)
        await first.__anext__()
        assert result.outputs[0].text == "part"
        with pytest.raises(RuntimeError, match="one `async for` at a time"):
            await aiter_of(result).__anext__()
        await first.aclose()
        gate.open()
        return (await result).outputs[0].text

    def aiter_of(result):
        return result.__aiter__()

    with host(NativeGenerationController(streaming=True), Parts()) as llm:
        assert asyncio.run(read()) == "whole"


def test_polling_leaves_nothing_behind():
    gate = Gate()
    with host(worker=EchoWorker(gate)) as llm:
        result = llm.generate_async("x")
        for _ in range(20):
            with pytest.raises(TimeoutError):
                result.result(timeout=0)
        assert result._wakers == ()
        gate.open()
        assert result.result(WAIT).outputs[0].text == "X"


def test_what_stops_the_loop_still_ends_every_request(monkeypatch):
    crashes = []
    monkeypatch.setattr(threading, "excepthook", lambda info: crashes.append(info.exc_type))
    gate = Gate()

    async def before(task):
        if task.input_str == "stop":
            raise KeyboardInterrupt
        await gate(task)

    llm = host(worker=EchoWorker(before))
    other = llm.generate_async("other")
    gate.wait_for(1)
    with pytest.raises(KeyboardInterrupt):
        llm.generate("stop")
    with pytest.raises(ShutdownError):
        other.result(WAIT)
    llm.shutdown()
    assert crashes == [KeyboardInterrupt]
    with pytest.raises(ShutdownError):
        llm.generate("x")


def test_a_controller_over_an_instant_worker_leaves_others_their_turn():
    class Busy(BaseController):
        def run(self, task, **kwargs):
            while True:
                yield [GenerationTask(worker_tag="generation", input_str="x")]

    with host(Busy()) as llm, pytest.raises(RequestTimeoutError):
        llm.generate("x", timeout=0.05)


# ---- branches, scopes, other tasks


def test_branches_run_concurrently_and_scopes_end():
    gate, worker = Gate(), EchoWorker()
    scopes = []

    async def before(task):
        scopes.append(current_scope.get().branch_path)
        await gate(task)

    worker.before = before
    with host(FanOut(FanOut(NativeGenerationController(), 2), 2), worker) as llm:
        result = llm.generate_async("p", sample_id="s")
        gate.wait_for(4)  # all four at once
        gate.open()
        assert result.result(WAIT).outputs[0].text == "P00+P01+P10+P11"
        scope = result.program.id
    assert sorted(scopes) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert set(worker.ended_scopes) == {f"{scope}:{path}" for path in ("0", "1", "0.0", "0.1", "1.0", "1.1")} | {scope}


def test_a_failing_scope_listener_does_not_fail_the_request():
    class Leaky(EchoWorker):
        async def on_scope_end(self, scope_id):
            raise Boom

    reported = threading.Event()
    with host(worker=Leaky()) as llm:
        llm.loop.call_soon_threadsafe(llm.loop.set_exception_handler, lambda loop, context: reported.set())
        assert llm.generate("x").outputs[0].text == "X"
        assert reported.wait(WAIT)


def test_any_task_type_with_a_handler_is_served():
    class Scorer(Worker):
        async def _reward(self, task):
            task.custom_output_params = {"score": len(task.input_str)}
            return TaskStatus.SUCCESS

        task_handlers: ClassVar = {RewardTask: _reward}

    class Scored(Controller):
        def process(self, tasks, **kwargs):
            reward = RewardTask(worker_tag="reward", input_str=tasks[0].input_str)
            yield [reward]
            tasks[0].output_str = str(reward.custom_output_params["score"])

    with ScaffoldingLlm(Scored(), {WorkerTag.REWARD: Scorer()}) as llm:
        assert llm.generate("four").outputs[0].text == "4"


def test_task_collections_are_per_request():
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


def test_workers_are_checked_when_the_stack_is_built():
    with pytest.raises(ConfigError, match="needs a worker 'generation'; the stack has: reward"):
        ScaffoldingLlm(NativeGenerationController(), {"reward": EchoWorker()})
    with pytest.raises(ValueError, match="at least 1"):
        host(max_parallel_requests=0)
    with host() as llm, pytest.raises(TypeError, match="pass a str"):
        llm.generate_async(["a"])
