"""The end of a stream comes behind the end of its request."""

from __future__ import annotations

import asyncio
import json

import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.errors import EngineError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.serving.bodies import CompletionBody, read_body
from scaffolding_ext.serving.jobs import Events, Job
from scaffolding_ext.serving.served_stack import ServedStack
from scaffolding_ext.serving.settings import Limits
from scaffolding_ext.testing import ScriptedWorker


@pytest.mark.parametrize(("prompts", "last"), [(["one"], b'"finish_reason":"stop"'), (["one", "bad"], b'"error"')])
def test_a_stream_ends_when_its_request_has_left_the_queue(prompts: list[str], last: bytes) -> None:
    may_leave = asyncio.Event()

    class Late(Job):
        async def _settle(self) -> None:
            await may_leave.wait()
            await super()._settle()

    async def scenario(llm: ScaffoldingLlm) -> None:
        asked = {"model": "model", "prompt": prompts, "stream": True}
        stack, body = ServedStack("model", llm, Limits()), read_body(CompletionBody, json.dumps(asked).encode())
        events, sent = Events(Late(stack, body, stack.read(body), lambda job: None, "id"), 60.0, lambda: None), []

        async def read() -> None:
            async for event in events:
                sent.append(event)  # noqa: PERF401 - it is looked at meanwhile

        reading = asyncio.create_task(read())
        while not any(last in event for event in sent):  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert b"data: [DONE]\n\n" not in sent
        assert stack.num_open == len(prompts)
        may_leave.set()
        await reading
        assert sent[-1] == b"data: [DONE]\n\n"
        assert stack.num_open == 0

    worker = ScriptedWorker(lambda task: EngineError("gone") if task.input_str == "bad" else "It is 4.")
    with ScaffoldingLlm(NativeGenerationController(), {"generation": worker}) as llm:
        asyncio.run(scenario(llm))


def test_text_that_was_held_back_may_be_replaced() -> None:
    async def scenario(llm: ScaffoldingLlm) -> list[str]:
        asked = {"model": "model", "prompt": "2 + 2?", "stream": True, "stop": ["END"]}
        stack, body = ServedStack("model", llm, Limits()), read_body(CompletionBody, json.dumps(asked).encode())
        events, shown = Events(Job(stack, body, stack.read(body), lambda job: None, "id"), 60.0, lambda: None), []
        for text in ("EN", "Four."):  # the first may become the stop string
            events._texts[0] = text
            shown.append(events._so_far(0).answer)
        assert [event async for event in events]
        return shown

    with ScaffoldingLlm(NativeGenerationController(), {"generation": ScriptedWorker("Four.")}) as llm:
        assert asyncio.run(scenario(llm)) == ["", "Four."]
