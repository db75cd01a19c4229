"""A host that is forked, interrupted or dropped, and what may leave its process."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import signal
import threading
from typing import Any

import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.errors import ScaffoldingExtError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.workers.shared.own_loop import OwnLoop

WAIT = 60.0


def made(worker: Any, **options: Any) -> ScaffoldingLlm:
    return ScaffoldingLlm(NativeGenerationController(), {"generation": worker}, **options)


def raised_in_a_child(call: Any) -> str:
    """Name of the exception that a call raises in a forked child, which ends at once."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            call()
            name = "nothing"
        except BaseException as error:
            name = type(error).__name__
        os.write(write, name.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        name = pipe.read()
    os.waitpid(child, 0)
    return name


async def nothing() -> None:
    pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_is_told_to_make_its_own() -> None:
    loop = OwnLoop("test", "closed")
    with made(ScriptedWorker("7")) as llm:
        for call in (
            lambda: llm.generate("q", timeout=1.0),
            lambda: llm.generate(["q", "r"]),
            lambda: llm.generate_async("q"),
            lambda: loop.run_blocking(nothing),
        ):
            assert raised_in_a_child(call) == ScaffoldingExtError.__name__
        assert llm.generate("q").answer is None  # the parent goes on
    loop.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_cannot_use_an_engine_of_its_parent() -> None:
    pytest.importorskip("torch")
    from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

    worker = HuggingFaceWorker("tinylm/draft", max_batch_size=2, max_seq_len=64)
    try:
        for task in (
            GenerationTask(input_tokens=[5], max_tokens=1),
            StreamGenerationTask(input_tokens=[5], max_tokens=1),
            ScoreTask(input_tokens=[5], continuation_tokens=[6]),
        ):
            assert (
                raised_in_a_child(lambda task=task: asyncio.run(worker.run_task(task))) == ScaffoldingExtError.__name__
            )
    finally:
        worker.shutdown()


class Stopped(BaseException):
    """Raised by a supervisor's signal handler."""


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, Stopped])
def test_an_interrupted_generate_cancels_what_it_started(kind: type[BaseException]) -> None:
    called = threading.Event()

    def interrupt(number: int, frame: Any) -> None:
        raise kind

    before_test = signal.signal(signal.SIGINT, interrupt)

    async def before(task: Any) -> None:
        if not called.is_set():
            called.set()
            os.kill(os.getpid(), signal.SIGINT)
        await forever()

    worker = ScriptedWorker("7", before=before)
    llm = made(worker, max_parallel_requests=2)
    try:
        with pytest.raises(kind):
            llm.generate([f"question {number}" for number in range(12)])
    finally:
        signal.signal(signal.SIGINT, before_test)
    assert called.is_set()
    llm.shutdown()
    assert len(worker.tasks) <= 2


async def forever() -> None:
    await asyncio.Event().wait()


class Owned(ScriptedWorker):
    def __init__(self) -> None:
        super().__init__("\\boxed{7}")
        self.is_shut_down = threading.Event()

    def shutdown(self) -> None:
        self.is_shut_down.set()


@pytest.mark.parametrize("owns_workers", [True, False])
def test_a_dropped_host_ends_its_thread_and_the_workers_that_it_owns(owns_workers: bool) -> None:
    worker = Owned()
    llm = made(worker, owns_workers=owns_workers)
    assert llm.generate("q").answer == "7"
    thread = llm._thread
    del llm
    gc.collect()
    thread.join(WAIT)
    assert not thread.is_alive()
    if owns_workers:
        assert worker.is_shut_down.wait(WAIT)
    else:
        assert not worker.is_shut_down.is_set()


def test_a_request_in_flight_keeps_a_dropped_host() -> None:
    gate = threading.Event()

    async def before(task: Any) -> None:
        await asyncio.to_thread(gate.wait, WAIT)

    llm = made(ScriptedWorker("\\boxed{7}", before=before))
    result = llm.generate_async("q")
    del llm
    gc.collect()
    gate.set()
    assert result.result().answer == "7"


@pytest.mark.parametrize("through", [copy.deepcopy, lambda output: pickle.loads(pickle.dumps(output))])
def test_an_output_leaves_its_process_without_its_program(through: Any) -> None:
    with made(ScriptedWorker("so \\boxed{7}")) as llm:
        result = llm.generate("q")
        output = result.outputs[0]
        again = through(output)
        assert again == output
        assert (again.answer, again.token_ids, again.program) == ("7", output.token_ids, None)
        with pytest.raises(TypeError, match=r"copy its outputs\[0\] instead"):
            pickle.dumps(result)
