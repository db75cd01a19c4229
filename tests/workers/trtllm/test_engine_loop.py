"""Requests of several event loops on one LLM, cancels and shutdowns: the engine wakes readers on one loop alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from scaffolding_ext.errors import EngineError
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask

pytest.importorskip("torch")
from scaffolding_ext.prompts.tokenizers import model_folder
from scaffolding_ext.workers.trtllm.worker import TRTLLMWorker

MODEL = "tinylm/draft"
PROMPT = "Start with 5. Apply a+3,b-2. Find the total."
LIMIT = 120.0  # seconds after which a request that hangs fails its test
pytestmark = pytest.mark.usefixtures("tensorrt_llm")


def llm_of(worker: TRTLLMWorker) -> Any:
    return worker._loaded.llm


def greedy(**fields: Any) -> GenerationTask:
    return GenerationTask(input_str=PROMPT, max_tokens=6, temperature=0.0, ignore_eos=True, **fields)


def long_stream() -> StreamGenerationTask:
    return StreamGenerationTask(input_str=PROMPT, max_tokens=900, temperature=0.0, ignore_eos=True, streaming_step=3)


class OnOwnLoop:
    """Runs a coroutine on an event loop of its own thread; the loop ends with it."""

    def __init__(self, work: Callable[[], Awaitable[Any]]) -> None:
        self.error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        async def work() -> None:
            await self._work()  # without a timer: it would wake a loop that hangs

        try:
            asyncio.run(work())
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        """Wait for it; a request that hangs fails here."""
        self._thread.join(LIMIT)
        assert not self._thread.is_alive(), "its loop hangs"
        if self.error is not None:
            raise self.error


def test_two_event_loops_on_one_llm_have_their_answers() -> None:
    """Both requests end in one batch, whose readers are woken on the first one's loop."""
    with TRTLLMWorker(MODEL) as worker:
        engine = llm_of(worker).executor
        engine.may_run.clear()
        tasks = [greedy(), greedy()]
        loops = []
        for task in tasks:
            engine.submitted.clear()
            loops.append(OnOwnLoop(lambda task=task: worker.run_task(task)))  # type: ignore[misc]
            assert engine.submitted.wait(LIMIT)
        engine.may_run.set()
        for loop in loops:
            loop.end()
    assert tasks[0].output_tokens == tasks[1].output_tokens
    assert len(tasks[0].output_tokens or ()) == 6


def test_a_request_beside_one_that_was_given_up_on_a_loop_that_ended_has_its_answer() -> None:
    """The batch begins with the last response of the aborted request, whose loop no longer runs."""
    with TRTLLMWorker(MODEL) as worker:
        engine = llm_of(worker).executor

        async def give_up() -> None:
            task = long_stream()
            await worker.run_task(task)
            engine.may_run.clear()
            task.cancel_flag = True
            await worker.run_task(task)

        OnOwnLoop(give_up).end()
        engine.submitted.clear()
        task = GenerationTask(input_str=PROMPT, max_tokens=1, temperature=0.0)
        loop = OnOwnLoop(lambda: worker.run_task(task))
        assert engine.submitted.wait(LIMIT)
        engine.may_run.set()
        loop.end()
    assert len(task.output_tokens or ()) == 1


def test_after_a_shutdown_a_stream_is_cancelled_in_peace() -> None:
    """The LLM's results refer to an executor that is gone."""

    async def scenario(worker: TRTLLMWorker) -> None:
        engine = llm_of(worker).executor
        task = long_stream()
        await worker.run_task(task)
        engine.may_run.clear()
        await asyncio.to_thread(worker.shutdown)
        task.cancel_flag = True
        await worker.run_task(task)
        assert task.end_flag
        assert len(task.output_tokens or ()) >= 3
        assert asyncio.all_tasks() == {asyncio.current_task()}, "a reader stays"
        with pytest.raises(EngineError, match="the worker has been shut down"):
            await worker.run_task(greedy())

    asyncio.run(scenario(TRTLLMWorker(MODEL)))


def test_a_shutdown_leaves_no_thread_and_nothing_in_an_adopted_llm(tensorrt_llm: Any) -> None:
    llm = tensorrt_llm.LLM(model_folder(MODEL))
    before = set(threading.enumerate())

    async def scenario() -> None:
        worker = TRTLLMWorker(llm)
        task = long_stream()
        await worker.run_task(task)
        await asyncio.to_thread(worker.shutdown)
        with pytest.raises(EngineError, match="the worker has been shut down"):
            await worker.run_task(task)

    try:
        asyncio.run(scenario())
        assert llm.executor.idle.wait(LIMIT)
        assert llm.executor.aborted == [0], "the engine ran on for nobody"
        assert {thread.name for thread in set(threading.enumerate()) - before if "tensorrt" in thread.name} == set()
        assert llm.generate_async.__self__ is llm
    finally:
        llm.shutdown()


def test_an_adopted_llm_is_used_from_one_loop_and_another_use_is_refused_by_name(tensorrt_llm: Any) -> None:
    llm = tensorrt_llm.LLM(model_folder(MODEL))
    ids = [5, 6, 7]

    async def own_use() -> list[int]:
        return list((await llm.generate_async(ids)).outputs[0].token_ids)

    try:
        with TRTLLMWorker(llm) as worker, TRTLLMWorker(llm) as second:
            with pytest.raises(EngineError, match=r"TRTLLMWorker uses this LLM.*load another LLM"):
                asyncio.run(own_use())
            task, other = (
                GenerationTask(input_tokens=ids, max_tokens=32, temperature=0.0),
                GenerationTask(input_tokens=ids, max_tokens=32, temperature=0.0),
            )
            asyncio.run(worker.run_task(task))
            asyncio.run(second.run_task(other))
            assert llm.generate_async(ids).result().outputs[0].token_ids == task.output_tokens == other.output_tokens
            worker.shutdown()
            with pytest.raises(EngineError, match="TRTLLMWorker uses this LLM"):
                asyncio.run(own_use())
        assert asyncio.run(own_use()) == task.output_tokens
    finally:
        llm.shutdown()
