"""Clients of OpenAI's interface, unchanged, against a front: what the table of docs/serving.md says of each.

    pip install litellm langchain-openai inspect-ai
    pytest -m integration -p no:unraisableexception tests/integration/test_clients.py    # LiteLLM leaves a loop open

Two turns, a tool's call and result, a stream, an answer by a schema and a call that must come: from a stack whose
worker keeps schemas (`kept`), from one over the double of a chat server (`chat`), and from one whose engine writes free
text (`free`).
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from scaffolding_ext import NativeGenerationController, ScaffoldingLlm
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.prompts.tokenizers import load_tokenizer
from scaffolding_ext.serving.app import Front
from scaffolding_ext.serving.served_stack import ServedStack
from scaffolding_ext.serving.server import FrontThread
from scaffolding_ext.serving.settings import Limits
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.workers.openai.worker import OpenAIWorker
from tests.servers.openai_server import OpenAIServer

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the web for prices when it is imported
TEMPLATE = (
    "{% if tools %}TOOLS {{ tools | tojson }}; {% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}; {% endfor %}assistant: "
)
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
STRICT = {**TOOL, "function": {**TOOL["function"], "strict": True}}  # type: ignore[dict-item]
CALLS = '[{"name": "weather", "arguments": {"city": "Paris"}}]'  # what the double of a chat server tells as calls
QUESTION, FURTHER, WEATHER = "What is 2+2?", "And 3+3?", "How is the weather in Paris?"


class Sum(BaseModel):
    """A sum's value."""

    value: int


class Guided(ScriptedWorker):
    """A worker whose engine keeps answers to a schema."""

    guides_json = True


def reply(task: Any) -> str:
    text = str(task.input_str)
    if guide := (task.custom_input_params or {}).get("guided_decoding"):
        if "anyOf" in guide["json"]:
            return '{"name": "weather", "arguments": {"city": "Paris"}}'
        return '{"city": "Paris"}' if "city" in guide["json"]["properties"] else '{"value": 4}'
    if WEATHER in text:
        return "It is sunny." if "sunny" in text else CALLS
    return "It is 6." if FURTHER in text and "assistant: It is 4." in text else "It is 4."


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    tokenizer = copy.deepcopy(load_tokenizer("tinylm/draft"))
    tokenizer.chat_template = TEMPLATE
    stacks = []
    for name, worker in (("kept", Guided(reply)), ("free", ScriptedWorker(reply))):
        controller = NativeGenerationController()
        controller.prompting = Prompting(tokenizer, "instruct")
        stacks.append(ServedStack(name, ScaffoldingLlm(controller, {"generation": worker}), Limits()))
    with (
        OpenAIServer(ScriptedWorker(reply), "m", flavor="vllm") as server,
        OpenAIWorker(server.url, "m", flavor="vllm", endpoint="chat") as worker,
    ):
        controller = NativeGenerationController({"max_tokens": 256})
        controller.prompting = Prompting(chat=True)
        stacks.append(ServedStack("chat", ScaffoldingLlm(controller, {"generation": worker}), Limits()))
        with FrontThread(Front(stacks)) as running:
            yield f"{running.url}/v1"


# ---- openai


def test_openai(url: str) -> None:
    with openai.OpenAI(base_url=url, api_key="none") as client:
        create = client.chat.completions.create
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        messages.append(create(model="free", messages=messages).choices[0].message)
        messages.append({"role": "user", "content": FURTHER})
        assert create(model="free", messages=messages).choices[0].message.content == "It is 6."

        messages = [{"role": "user", "content": WEATHER}]
        called = create(model="chat", messages=messages, tools=[TOOL]).choices[0].message  # type: ignore[call-overload]
        (call,) = called.tool_calls
        messages += [called.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
        told = create(model="chat", messages=messages, tools=[TOOL])  # type: ignore[call-overload]
        assert told.choices[0].message.content == "It is sunny."

        for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
            forced: Any = {"messages": messages[:1], "tools": [STRICT], "tool_choice": choice}
            (call,) = create(model="kept", **forced).choices[0].message.tool_calls
            assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Paris"})
            deltas = [chunk.choices[0].delta for chunk in create(model="kept", stream=True, **forced)]
            (call,) = [call for delta in deltas for call in delta.tool_calls or ()]
            assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Paris"})
            with pytest.raises(openai.BadRequestError, match="writes free text"):
                create(model="free", **forced)

        chunks = create(model="free", messages=[{"role": "user", "content": QUESTION}], stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "It is 4."

        parse, asked = client.chat.completions.parse, [{"role": "user", "content": QUESTION}]
        parsed = parse(model="kept", messages=asked, response_format=Sum)  # type: ignore[arg-type]
        assert parsed.choices[0].message.parsed == Sum(value=4)
        with pytest.raises(openai.BadRequestError, match="writes free text"):
            parse(model="free", messages=asked, response_format=Sum)  # type: ignore[arg-type]
        with pytest.raises(openai.NotFoundError, match="use chat completions"):
            client.responses.create(model="free", input=QUESTION)


# ---- LiteLLM


def test_litellm(url: str) -> None:
    litellm: Any = pytest.importorskip("litellm")

    def create(model: str, messages: list[Any], **more: Any) -> Any:
        return litellm.completion(model=f"openai/{model}", api_base=url, api_key="none", messages=messages, **more)

    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    messages.append(create("free", messages).choices[0].message)
    messages.append({"role": "user", "content": FURTHER})
    assert create("free", messages).choices[0].message.content == "It is 6."

    messages = [{"role": "user", "content": WEATHER}]
    called = create("chat", messages, tools=[TOOL]).choices[0].message
    messages += [called, {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "sunny"}]
    assert create("chat", messages, tools=[TOOL]).choices[0].message.content == "It is sunny."

    (call,) = create("kept", messages[:1], tools=[TOOL], tool_choice="required").choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Paris"}

    asked = [{"role": "user", "content": QUESTION}]
    chunks = create("free", asked, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "It is 4."
    assert Sum.model_validate_json(create("kept", asked, response_format=Sum).choices[0].message.content).value == 4
    with pytest.raises(litellm.BadRequestError, match="writes free text"):
        create("free", asked, response_format=Sum)


# ---- LangChain


def test_langchain(url: str) -> None:
    langchain_openai: Any = pytest.importorskip("langchain_openai")
    messages_of: Any = pytest.importorskip("langchain_core.messages")
    free, kept, chat = (
        langchain_openai.ChatOpenAI(model=name, base_url=url, api_key="none", max_retries=0)
        for name in ("free", "kept", "chat")
    )
    messages = [messages_of.HumanMessage(QUESTION)]
    messages += [free.invoke(messages), messages_of.HumanMessage(FURTHER)]
    assert free.invoke(messages).content == "It is 6."

    with_tools = chat.bind_tools([TOOL])
    messages = [messages_of.HumanMessage(WEATHER)]
    called = with_tools.invoke(messages)
    messages += [called, messages_of.ToolMessage("sunny", tool_call_id=called.tool_calls[0]["id"])]
    assert with_tools.invoke(messages).content == "It is sunny."
    (call,) = kept.bind_tools([TOOL], tool_choice="weather").invoke(WEATHER).tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Paris"})
    with pytest.raises(openai.BadRequestError, match="writes free text"):
        free.bind_tools([TOOL], tool_choice="weather").invoke(WEATHER)

    assert "".join(str(chunk.content) for chunk in free.stream(QUESTION)) == "It is 4."
    assert kept.with_structured_output(Sum).invoke(QUESTION) == Sum(value=4)
    with pytest.raises(openai.BadRequestError, match="writes free text"):
        free.with_structured_output(Sum).invoke(QUESTION)
    assert kept.with_structured_output(Sum, method="function_calling").invoke(QUESTION) == Sum(value=4)


# ---- inspect_ai


def test_inspect_ai(url: str) -> None:
    model_of: Any = pytest.importorskip("inspect_ai.model")
    tool_of: Any = pytest.importorskip("inspect_ai.tool")
    util: Any = pytest.importorskip("inspect_ai.util")
    tool = tool_of.ToolInfo(
        name="weather",
        description="Tells the weather.",
        parameters=tool_of.ToolParams(
            properties={"city": util.JSONSchema(type="string", description="The city.")}, required=["city"]
        ),
    )

    async def run() -> None:
        free, kept, chat = (
            model_of.get_model(f"openai/{name}", base_url=url, api_key="none", responses_api=False)
            for name in ("free", "kept", "chat")
        )
        messages = [model_of.ChatMessageUser(content=QUESTION)]
        first = await free.generate(messages)
        messages += [first.message, model_of.ChatMessageUser(content=FURTHER)]
        assert (await free.generate(messages)).completion == "It is 6."

        messages = [model_of.ChatMessageUser(content=WEATHER)]
        called = (await chat.generate(messages, tools=[tool])).message
        told = model_of.ChatMessageTool(content="sunny", tool_call_id=called.tool_calls[0].id, function="weather")
        assert (await chat.generate([*messages, called, told], tools=[tool])).completion == "It is sunny."

        forced = tool_of.ToolFunction("weather")
        (call,) = (await kept.generate(WEATHER, tools=[tool], tool_choice=forced)).message.tool_calls
        assert (call.function, call.arguments) == ("weather", {"city": "Paris"})

        schema = model_of.ResponseSchema(name="sum", json_schema=util.json_schema(Sum))
        config = model_of.GenerateConfig(response_schema=schema)
        assert Sum.model_validate_json((await kept.generate(QUESTION, config=config)).completion).value == 4
        try:
            refused = str((await free.generate(QUESTION, config=config)).error)
        except Exception as error:
            refused = str(error)
        assert "writes free text" in refused

    asyncio.run(run())


# ---- curl


def test_curl(url: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl")

    def post(**fields: Any) -> str:
        command = ["curl", "-sN", f"{url}/chat/completions", "-H", "content-type: application/json"]
        asked = {"model": "free", "messages": [{"role": "user", "content": QUESTION}]} | fields
        return subprocess.run([*command, "-d", json.dumps(asked)], capture_output=True, text=True, check=True).stdout

    assert json.loads(post())["choices"][0]["message"]["content"] == "It is 4."
    lines = [line for line in post(stream=True).splitlines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    pieces = [json.loads(line.removeprefix("data: "))["choices"] for line in lines[:-1]]
    assert "".join(piece[0]["delta"].get("content") or "" for piece in pieces if piece) == "It is 4."
