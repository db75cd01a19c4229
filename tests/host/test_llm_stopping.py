"""The ends of requests and of the host: cancellation, time-outs, shutdown; ordered by events."""

import asyncio
import contextlib
import threading

import pytest

from scaffolding_ext.controllers.base import BaseController, finish
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.errors import (
    ConfigError,
    RequestCancelledError,
    RequestTimeoutError,
    ShutdownError,
    WorkerError,
)
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.testing import Gate, ScriptedWorker

WAIT = 30.0  # seconds until a hanging test fails; nothing waits that long when all is well


def test_cancel_frees_the_slot_and_leaves_others_alone(host, echo):
    gate = Gate()
    with host(worker=echo(gate), max_parallel_requests=2) as llm:
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


def test_cancel_while_waiting_for_a_slot(host, echo):
    gate = Gate()
    with host(worker=echo(gate), max_parallel_requests=1) as llm:
        running, waiting = llm.generate_async("a"), llm.generate_async("b")
        gate.wait_for(1)
        waiting.cancel()
        with pytest.raises(RequestCancelledError):
            waiting.result(WAIT)
        gate.open()
        assert running.result(WAIT).outputs[0].text == "A"


def test_timeout_of_a_request(host, echo):
    with host(worker=echo(Gate())) as llm:
        with pytest.raises(RequestTimeoutError, match=r"within 0\.01 s"):
            llm.generate("x", timeout=0.01)
        with pytest.raises(TimeoutError):
            llm.generate("x", timeout=0.01)


@pytest.mark.parametrize("timeout", ["5", 0, float("nan")])
def test_a_bad_timeout_is_refused_in_the_call_and_harms_no_other_request(timeout, host, echo):
    gate = Gate()
    with host(worker=echo(gate)) as llm:
        before = llm.generate_async("before")
        with pytest.raises(ConfigError, match=r"timeout: is .*; it must be .*above 0"):
            llm.generate_async("x", timeout=timeout)
        gate.open()
        assert before.result(WAIT).outputs[0].text == "BEFORE"


def test_shutdown_wakes_every_waiter(host, echo):
    gate = Gate()
    llm = host(worker=echo(gate), max_parallel_requests=1)
    results = [llm.generate_async(t) for t in "abc"]
    gate.wait_for(1)
    llm.shutdown()
    for result in results:
        with pytest.raises(ShutdownError):
            result.result(WAIT)
    with pytest.raises(ShutdownError, match="make a new"):
        llm.generate("x")
    llm.shutdown()  # again: nothing happens


class ClosingWorker(ScriptedWorker):
    """Notes in a list how it is shut down; fails at the steps that it is told to."""

    def __init__(self, name, closed, failing=()):
        super().__init__("x")
        self.name, self.closed, self.failing = name, closed, failing

    def close(self, step):
        self.closed.append(f"{self.name} {step}")
        if step in self.failing:
            raise OSError(f"{self.name} is stuck in {step}")

    async def async_shutdown(self):
        asyncio.get_running_loop()
        self.close("async")

    def shutdown(self):
        self.close("sync")


def test_shutdown_of_workers_is_the_owners_choice(host):
    closed = []
    owned, lent, told = (ClosingWorker(name, closed) for name in ("owned", "lent", "told"))
    with host(worker=owned, owns_workers=True), host(worker=lent):
        pass
    assert closed == ["lent async", "owned async", "owned sync"]  # what a worker holds on the loop ends with the loop
    host(worker=told).shutdown(shutdown_workers=True)
    assert closed[3:] == ["told async", "told sync"]
    llm = host(worker=lent, owns_workers=True)
    llm.shutdown(shutdown_workers=False)
    assert closed[5:] == ["lent async"]
    llm.shutdown()
    llm.shutdown()
    assert closed[6:] == ["lent sync"]  # once; the loop is gone


def test_a_lent_worker_that_fails_on_the_loop_is_told_of_and_left_running(host):
    closed = []
    llm = host(worker=ClosingWorker("lent", closed, failing=("async",)))
    with pytest.raises(WorkerError, match="lent is stuck in async"):
        llm.shutdown()
    llm.shutdown()
    assert closed == ["lent async"]


def test_a_program_for_upstreams_host_may_ask_for_task_collections(host):
    with host() as llm:
        llm.enable_output_task_collection()
        assert llm.generate("x").task_collections == {}


def test_workers_are_shut_down_in_their_order_and_once_whatever_their_number_of_tags():
    closed = []
    workers = [ClosingWorker(str(number), closed) for number in range(9)]
    by_tag = {"generation": workers[0], "first": workers[1], "again": workers[0]}
    by_tag |= {worker.name: worker for worker in workers[2:]}
    ScaffoldingLlm(NativeGenerationController(), by_tag, owns_workers=True).shutdown()
    assert closed == [f"{number} {step}" for step in ("async", "sync") for number in range(9)]


def test_a_worker_that_fails_to_shut_down_does_not_keep_others_from_it_and_no_error_is_lost():
    closed = []
    by_tag = {
        "generation": ClosingWorker("a", closed, failing=("sync",)),
        "draft": ClosingWorker("b", closed, failing=("async", "sync")),
        "reward": ClosingWorker("c", closed),
    }
    llm = ScaffoldingLlm(NativeGenerationController(), by_tag, owns_workers=True)
    with pytest.raises(WorkerError, match=r"OSError: b is stuck in async; .*a is stuck in sync") as caught:
        llm.shutdown()
    assert closed == ["a async", "b async", "c async", "a sync", "b sync", "c sync"]
    assert str(caught.value.__cause__) == "b is stuck in async"
    assert "b is stuck in sync" in str(caught.value)
    llm.shutdown()  # it has been told


def test_shutdown_on_the_hosts_own_thread_shuts_owned_workers_down_too(host):
    closed = []
    llm = host(worker=ClosingWorker("owned", closed), owns_workers=True)
    llm.loop.call_soon_threadsafe(llm.shutdown)
    llm._thread.join(WAIT)
    assert closed == ["owned async", "owned sync"]
    llm.shutdown()
    assert closed[2:] == []


def test_a_worker_that_ignores_cancellation_does_not_hang_shutdown(monkeypatch, host, echo):
    monkeypatch.setattr("scaffolding_ext.host.dispatch.GRACE_SECONDS", 0.01)
    started = threading.Event()

    async def stubborn(task):
        started.set()
        release = asyncio.get_running_loop().create_future()
        while not release.done():
            try:
                await asyncio.shield(release)
            except asyncio.CancelledError:
                asyncio.get_running_loop().call_later(0.05, lambda: release.done() or release.set_result(None))

    llm = host(worker=echo(stubborn))
    result = llm.generate_async("x")
    assert started.wait(WAIT)
    llm.shutdown()
    with pytest.raises(ShutdownError):
        result.result(WAIT)


def test_what_stops_the_loop_still_ends_every_request(monkeypatch, host, echo):
    crashes = []
    monkeypatch.setattr(threading, "excepthook", lambda info: crashes.append(info.exc_type))
    gate = Gate()

    async def before(task):
        if task.input_str == "stop":
            raise KeyboardInterrupt
        await gate(task)

    llm = host(worker=echo(before))
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


def test_a_controller_over_an_instant_worker_leaves_others_their_turn(host):
    class Busy(BaseController):
        def run(self, task, **kwargs):
            while True:
                yield [GenerationTask(worker_tag="generation", input_str="x")]

    with host(Busy()) as llm, pytest.raises(RequestTimeoutError):
        llm.generate("x", timeout=0.05)


def test_the_first_reason_to_stop_a_request_is_the_one_that_its_caller_gets():
    """The worker reacts to the time-out only after the request was cancelled, too."""
    reacting, going_on = threading.Event(), asyncio.Event()

    async def hold(task):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            reacting.set()
            await going_on.wait()
            raise

    with ScaffoldingLlm(NativeGenerationController(), {"generation": ScriptedWorker("7", before=hold)}) as llm:
        result = llm.generate_async("question", timeout=0.01)
        assert reacting.wait(30)
        result.cancel()
        llm.loop.call_soon_threadsafe(going_on.set)
        assert isinstance(result.exception(30), RequestTimeoutError)


class Twice(BaseController):
    """Asks its worker twice, one time after the other."""

    def run(self, task, **kwargs):
        yield [GenerationTask(input_str="first", worker_tag="generation")]
        yield [GenerationTask(input_str="second", worker_tag="generation")]
        finish(task, "done", None)


def test_a_worker_that_keeps_a_cancellation_to_itself_does_not_keep_the_request_going():
    """It answers when it is cancelled, so the controller would go on, and ask it again."""

    async def hold(task):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    worker = ScriptedWorker("7", before=hold)
    with ScaffoldingLlm(Twice(), {"generation": worker}) as llm:
        result = llm.generate_async("question", timeout=0.01)
        assert isinstance(result.exception(30), RequestTimeoutError)
    assert len(worker.tasks) == 1
    assert not asyncio.all_tasks(llm.loop)
