"""Dynasor-CoT on workers that cannot stream, give text alone, stream to the caller, or fail."""

import asyncio
import itertools
import threading
from typing import ClassVar

import pytest

from scaffolding_ext.errors import EngineError, TaskError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, TaskStatus, Worker
from scaffolding_ext.testing import ScriptedWorker

PROMPT = "Question: "
ENDLESS = "thinking on and on " * 100
WAIT = 30.0  # seconds until a hanging test fails; nothing waits that long when all is well


@pytest.mark.parametrize("mode", ["chunk", "chunk_in_turn"])
@pytest.mark.parametrize("probes", [["5}"] * 3, []])
def test_a_worker_that_gives_text_alone_is_good_enough(mode, probes, ask, dynasor, closed):
    class TextOnly(Worker):
        def __init__(self, respond, **options):
            self.respond = respond

        async def _generate(self, task):
            task.output_str = self.respond(task)[: task.max_tokens]
            return TaskStatus.SUCCESS

        task_handlers: ClassVar = {GenerationTask: _generate}

    result, _ = ask(dynasor(mode, max_tokens=50), ENDLESS, probes, TextOnly)
    assert result.outputs[0].text == (closed(ENDLESS[:30], "5") if probes else ENDLESS[:50])
    assert result.program.ledger.total.decoded == 0
    assert result.program.ledger.num_unmetered_tasks > 3


class ChunkWorker(ScriptedWorker):
    task_handlers: ClassVar = {GenerationTask: ScriptedWorker.task_handlers[GenerationTask]}


def test_where_the_worker_cannot_stream_chunks_take_over_and_the_trace_says_so(ask, dynasor, events, closed):
    result, worker = ask(dynasor("stream"), ENDLESS, ["5}"] * 3, ChunkWorker)
    (lowered,) = events(result, "fallback")
    assert (lowered["task"], lowered["to"]) == ("StreamGenerationTask", "GenerationTask")
    assert "cannot stream" in lowered["reason"]
    assert {type(task) for task in worker.tasks} == {GenerationTask}
    assert result.outputs[0].text == closed(ENDLESS[:30], "5")


def test_where_the_worker_streams_nothing_is_lowered(ask, dynasor, events):
    result, worker = ask(dynasor("stream"), ENDLESS, ["5}"] * 3)
    assert events(result, "fallback") == []
    assert [type(task) for task in worker.tasks].count(StreamGenerationTask) == 1


def test_streaming_reaches_the_caller_as_it_is_generated(dynasor, script, closed):
    seen = threading.Event()

    async def before(task):  # a stream's second step waits until the caller has its first
        if type(task) is StreamGenerationTask and task.output_tokens:
            assert await asyncio.get_running_loop().run_in_executor(None, seen.wait, WAIT)

    async def read():
        texts = []
        async for part in llm.generate_async(PROMPT):
            texts.append(part.outputs[0].text)
            seen.set()
        return texts

    worker = ScriptedWorker(script(ENDLESS, ["5}"] * 3), before=before)
    with ScaffoldingLlm(dynasor("stream", streaming=True), {"generation": worker}) as llm:
        texts = asyncio.run(read())
    assert texts[0] == ENDLESS[:10]
    assert texts[-1] == closed(ENDLESS[:30], "5")
    assert all(ENDLESS.startswith(text) for text in texts[:-1])


@pytest.mark.parametrize("probes", [["5}"] * 3, ["1}", "2}"]])
def test_a_fault_in_any_task_is_the_requests_error(mode, probes, dynasor, script):
    for failing in itertools.count():
        calls = itertools.count()

        async def before(task, calls=calls, failing=failing):
            if next(calls) == failing:
                raise EngineError("out of luck")

        worker = ScriptedWorker(script(ENDLESS, probes), before=before)
        with ScaffoldingLlm(dynasor(mode, max_tokens=40), {"generation": worker}) as llm:
            result = llm.generate_async(PROMPT)
            error = result.exception(WAIT)
        if error is None:
            break
        assert isinstance(error, TaskError)
        assert isinstance(error.__cause__, EngineError)
        assert result.outputs == []
    assert failing >= len(worker.tasks) >= 4
