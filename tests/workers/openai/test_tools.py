"""Tools go to a chat server as they are, and its calls come back, whole or streamed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.meta import meta_of, note
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.workers.openai.fields import UnreadableAnswerError, call_parts, joined_calls
from scaffolding_ext.workers.openai.worker import OpenAIWorker
from tests.servers.openai_server import OpenAIServer

CALLS = [{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "time", "arguments": {}}]
TOOLS: Any = {"tools": [{"type": "function", "function": {"name": "weather"}}], "tool_choice": "auto"}
RESULT = {"role": "tool", "tool_call_id": "call-0"}


@pytest.mark.parametrize("streams", [False, True])
def test_tools_and_their_results_are_sent_and_calls_come_back(streams: bool) -> None:
    task = GenerationTask(input_str="sunny", max_tokens=400, temperature=0.0)
    task.streaming_output_flag = streams
    asked = {"role": "user", "content": "How is it?"}
    note(task, tools=TOOLS, turns=(asked,), last_turn=RESULT)
    with (
        OpenAIServer(ScriptedWorker(json.dumps(CALLS)), "m", flavor="vllm") as server,
        OpenAIWorker(server.url, "m", flavor="vllm", endpoint="chat") as worker,
    ):
        asyncio.run(worker.run_task(task))
        (body,) = [request.body for request in server.requests if "tools" in request.body]
    assert body["messages"] == [asked, RESULT | {"content": "sunny"}]
    assert {name: body[name] for name in TOOLS} == TOOLS
    assert task.output_str == ""
    assert [(call.name, json.loads(call.arguments)) for call in meta_of(task).calls] == [
        (call["name"], call["arguments"]) for call in CALLS
    ]


def test_pieces_of_several_calls_are_joined_by_their_index() -> None:
    pieces = [(1, "b", '{"x'), (0, "a", "{}"), (1, None, '": 1}')]
    deltas = [{"tool_calls": [{"index": i, "function": {"name": n, "arguments": a}}]} for i, n, a in pieces]
    parts = [part for delta in deltas for part in call_parts(delta)]
    assert joined_calls(parts) == (("a", "{}"), ("b", '{"x": 1}'))
    with pytest.raises(UnreadableAnswerError, match="a tool call's arguments"):
        call_parts({"tool_calls": [{"function": {"name": "a", "arguments": {}}}]})
