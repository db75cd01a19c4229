"""The caller's side of a result: waiting, streaming, completions, and failures that nobody asks about."""

import asyncio
import gc
import threading
from typing import ClassVar

import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.errors import NoOutputError, RequestTimeoutError, ShutdownError, TaskError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.host.request import abort
from scaffolding_ext.protocol import Controller, GenerationTask, ScaffoldingOutput, TaskStatus, Worker
from scaffolding_ext.request.results import Completion, completion_of
from scaffolding_ext.testing import Gate

WAIT = 30.0  # seconds until a hanging test fails; nothing waits that long when all is well


def test_result_times_out_without_stopping_the_request(host, echo):
    gate = Gate()
    with host(worker=echo(gate)) as llm:
        result = llm.generate_async("x")
        gate.wait_for(1)
        with pytest.raises(TimeoutError, match="keeps running"):
            result.result(timeout=0)
        gate.open()
        assert result.result(WAIT).outputs[0].text == "X"


def test_streaming_reaches_the_caller_while_it_is_generated(host):
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


def test_a_part_that_comes_behind_the_end_is_dropped(host, echo):
    async def read(result):
        return [part.outputs[0].text async for part in result]

    with host(worker=echo()) as llm:
        result = llm.generate_async("x")
        result.result(WAIT)
        result.push(ScaffoldingOutput("an audit's", None))
        assert asyncio.run(read(result)) == ["X"]


def test_streaming_raises_the_requests_error(host, failing_on):
    async def read():
        async for _ in llm.generate_async("bad"):
            pass

    with host(worker=failing_on("bad")) as llm, pytest.raises(TaskError):
        asyncio.run(read())


class Parts(Worker):
    """Streams two parts, is held, streams a third, is held again, and ends."""

    def __init__(self):
        self.middle, self.end = Gate(), Gate()

    async def _generate(self, task):
        task.streaming_output_list.extend([ScaffoldingOutput("p", None), ScaffoldingOutput("pa", None)])
        await self.middle(task)
        task.streaming_output_list.append(ScaffoldingOutput("par", None))
        await self.end(task)
        task.output_str = "part"
        return TaskStatus.SUCCESS

    task_handlers: ClassVar = {GenerationTask: _generate}


def test_a_second_loop_goes_on_where_the_first_was_left(host):
    worker = Parts()

    async def read():
        result = llm.generate_async("x")
        async for part in result:
            assert part.outputs[0].text in ("p", "pa")
            break
        worker.middle.wait_for(1)  # the second part is there
        seen = []
        async for part in result:
            seen.append(part.outputs[0].text)
            if seen[-1] == "pa":
                worker.middle.open()
            if seen[-1] == "par":
                worker.end.open()
        return seen, [part.outputs[0].text async for part in result]

    with host(NativeGenerationController(streaming=True), worker) as llm:
        seen, again = asyncio.run(read())
    assert seen in (["pa", "par", "part"], ["p", "pa", "par", "part"])  # what nobody read in time gives way to the next
    assert again[-1] == "part"


def test_one_loop_at_a_time(host):
    worker = Parts()

    async def read():
        result = llm.generate_async("x")
        first = result.__aiter__()
        await first.__anext__()
        second = result.__aiter__()
        assert (await second.__anext__()).outputs[0].text in ("p", "pa")
        with pytest.raises(RuntimeError, match=r"another `async for` over request .* has begun"):
            await first.__anext__()
        worker.middle.open()
        worker.end.open()
        return [part.outputs[0].text async for part in second]

    with host(NativeGenerationController(streaming=True), worker) as llm:
        assert asyncio.run(read())[-1] == "part"


# ---- waiting on the host's own thread


def test_waiting_on_the_hosts_own_thread_is_refused_not_a_deadlock(host, echo):
    gate, told = Gate(), []
    with host(worker=echo(gate)) as llm:
        result = llm.generate_async("x")
        gate.wait_for(1)

        def wait():
            for function in (result.result, result.exception, lambda: llm.generate("y")):
                try:
                    function()
                except RuntimeError as error:
                    told.append(str(error))
            gate.open()

        llm.loop.call_soon_threadsafe(wait)
        assert result.result(WAIT).outputs[0].text == "X"
        assert len(told) == 3
        assert all("would block the host's own thread" in message for message in told)


# ---- completions


def test_the_output_of_a_controller_of_another_kind_becomes_a_completion_under_our_host(host):
    class Theirs(Controller):
        def process(self, tasks, **kwargs):
            tasks[0].worker_tag = "generation"
            yield tasks

    with host(Theirs()) as llm:
        result = llm.generate_async("x")
        assert completion_of(result) == Completion("X", [ord("X")])
        assert completion_of(result).program is result.program


class UpstreamResult:
    """As upstream's host leaves it: an empty output, unless the controller's took its place."""

    def __init__(self, output=None):
        self.outputs = [output or ScaffoldingOutput("", [])]

    def result(self):
        return self


def test_a_failed_request_of_upstreams_host_is_an_error_not_an_empty_text():
    completion = Completion("", [])
    assert completion_of(UpstreamResult(completion)) is completion
    for output in (None, ScaffoldingOutput("text of another controller", [])):
        with pytest.raises(NoOutputError, match="ended without a Completion"):
            completion_of(UpstreamResult(output))


# ---- failures that nobody asks about


def forgotten(caplog, worker, ask=lambda result: None):
    """Return the log of a request that failed and whose result is gone."""
    with ScaffoldingLlm(NativeGenerationController(), {"generation": worker}) as llm:
        result = llm.generate_async("bad")
        llm.generate("good")
        ask(result)
        name = result.id
        del result
    del llm
    gc.collect()
    return [record for record in caplog.records if name in record.getMessage()]


def test_a_failure_that_nobody_asks_about_is_logged_once(caplog, failing_on):
    (record,) = forgotten(caplog, failing_on("bad"))
    assert (record.levelname, record.name) == ("WARNING", "scaffolding_ext.request.results")
    assert "its result was never read" in record.getMessage()
    assert "out of luck" in str(record.exc_info[1])


@pytest.mark.parametrize(
    "ask",
    [
        lambda result: result.exception(WAIT),
        lambda result: expect_failure(result.result),
        lambda result: expect_failure(asyncio.run, waited(result)),
        lambda result: expect_failure(asyncio.run, streamed(result)),
    ],
)
def test_a_failure_that_somebody_has_seen_is_not_logged(caplog, ask, failing_on):
    assert forgotten(caplog, failing_on("bad"), ask) == []


def expect_failure(function, *arguments):
    with pytest.raises(TaskError):
        function(*arguments)


async def waited(result):
    await result


async def streamed(result):
    async for _ in result:
        pass


def test_cancelled_requests_are_not_logged_but_others_that_ended_early_are(caplog, host, echo):
    gate = Gate()
    with host(worker=echo(gate)) as llm:
        cancelled, late, open_ = (llm.generate_async(prompt) for prompt in "abc")
        gate.wait_for(3)
        cancelled.cancel()
        llm.loop.call_soon_threadsafe(abort, late, RequestTimeoutError("its time is over"))
        gate.wait_for_cancelled(2)
        names = [request.id for request in (cancelled, late, open_)]
    del cancelled, late, open_, llm
    gc.collect()
    logged = {name: [type(r.exc_info[1]) for r in caplog.records if name in r.getMessage()] for name in names}
    assert list(logged.values()) == [[], [RequestTimeoutError], [ShutdownError]]
