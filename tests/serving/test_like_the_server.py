"""The front takes what the server behind it takes."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

import openai
import pytest

pytest.importorskip("transformers")

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.prompts.tokenizers import load_tokenizer
from scaffolding_ext.stack.build import build_stack
from scaffolding_ext.stack.config import StackConfig
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.workers.openai.worker import OpenAIWorker
from tests.servers.openai_server import OpenAIServer
from tests.serving.test_response_format import Guided
from tests.serving.test_tool_calls import ASK, NAMED

CHAT: Any = {"model": "model", "messages": [{"role": "user", "content": "What is the capital of France?"}]}


@contextlib.contextmanager
def behind(serve: Any, endpoint: Any) -> Any:
    """A front on a double of vLLM, and the bodies that the double has received."""
    controller = NativeGenerationController()
    chat = endpoint == "chat"
    controller.prompting = Prompting(None if chat else load_tokenizer("tinylm/draft"), "instruct", chat=chat)
    with (
        OpenAIServer(ScriptedWorker("Paris."), "m", flavor="vllm", max_model_len=512) as server,
        OpenAIWorker(server.url, "m", tokenizer="tinylm/draft", flavor="vllm", endpoint=endpoint, max_seq_len=512) as w,
    ):
        served = serve(controller=controller, model_worker=w)
        with served.client() as client:
            yield client, lambda: [request.body for request in server.requests if request.body]


@pytest.mark.parametrize(
    "last", [{"role": "assistant", "content": "The capital is"}, {"role": "system", "content": "x"}]
)
def test_a_conversation_may_end_with_any_turn(serve: Any, last: Any) -> None:
    turns = [*CHAT["messages"], last]
    with behind(serve, "chat") as (client, bodies):
        client.chat.completions.create(**(CHAT | {"messages": turns}))
        assert bodies()[-1]["messages"] == turns


def test_a_rendered_conversation_may_end_with_the_assistants_turn(serve: Any) -> None:
    controller: Any = NativeGenerationController()
    tokenizer = copy.deepcopy(load_tokenizer("tinylm/draft"))
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}[assistant] "
    controller.prompting = Prompting(tokenizer, "instruct")
    served = serve(controller=controller)
    turns = [*CHAT["messages"], {"role": "assistant", "content": "Paris."}]
    with served.client() as client:
        client.chat.completions.create(**(CHAT | {"messages": turns}))
    (task,) = served.worker.tasks
    assert task.input_str == "[user] What is the capital of France?[assistant] Paris.[assistant] "


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_biases_pass(serve: Any, endpoint: str) -> None:
    with behind(serve, endpoint) as (client, bodies):
        client.chat.completions.create(**CHAT, logit_bias={"260": -100})
        assert bodies()[-1]["logit_bias"] == {"260": -100}
        client.chat.completions.create(**CHAT, logit_bias={})
        assert "logit_bias" not in bodies()[-1]
        for wrong in ({"260": 101}, {"260": "x"}, [1]):
            with pytest.raises(openai.BadRequestError) as refused:
                client.chat.completions.create(**CHAT, logit_bias=wrong)
            assert str(refused.value.param).startswith("logit_bias")


PLAIN: Any = {"type": "NativeGenerationController", "args": {"sampling_params": {"max_tokens": 300}}}
VOTE: Any = {"type": "MajorityVoteController", "args": {"default_sample_num": 2, "generation_controller": PLAIN}}
CHAIN: Any = {"type": "DynasorCoTController", "args": {"max_tokens": 300, "family": "instruct"}}


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("controller", [PLAIN, VOTE, CHAIN], ids=["plain", "vote", "dynasor"])
def test_a_served_stack_asks_the_server_as_one_in_process_does(serve: Any, controller: Any, endpoint: str) -> None:
    """The server does not tell its context length."""
    if (controller, endpoint) == (CHAIN, "chat"):
        pytest.skip("such a chat server continues no answer")
    sent = []
    with OpenAIServer(ScriptedWorker(r"It is \boxed{4}."), "m", flavor="openai", max_model_len=None) as server:
        worker = {"base_url": server.url, "model": "m", "flavor": "openai", "endpoint": endpoint}
        stack = {"controller": controller, "workers": {"generation": {"type": "OpenAIWorker", "args": worker}}}
        stack |= {"prompt": {"family": "instruct"}}
        served = serve(stack_file=stack)
        with build_stack(StackConfig.model_validate(stack)) as llm, served.client() as client:
            llm.generate("2+2?")
            sent.append([request.body for request in server.requests if request.body])
            server.requests.clear()
            client.chat.completions.create(model="model", messages=[{"role": "user", "content": "2+2?"}])
            sent.append([request.body for request in server.requests if request.body])
    in_process, over_http = sent
    assert in_process == over_http
    assert all(body["max_tokens"] <= 300 for body in over_http)


def test_a_limit_beyond_the_context_names_the_models(serve: Any) -> None:
    with behind(serve, "completions") as (client, _), pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**CHAT, max_tokens=100_000)
    assert refused.value.body["message"] == "max_tokens: must be at most 512, the model's context"


@pytest.mark.parametrize(
    ("choice", "text"), [(NAMED, '{"city": "Paris"}'), ("required", '{"name": "weather", "arguments": {}}')]
)
def test_a_required_call_needs_no_template_that_shows_tools(serve: Any, choice: Any, text: str) -> None:
    controller: Any = NativeGenerationController()
    tokenizer = copy.deepcopy(load_tokenizer("tinylm/draft"))
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    controller.prompting = Prompting(tokenizer, "instruct")
    served = serve(controller=controller, model_worker=Guided(text))
    with served.client() as client:
        (made,) = client.chat.completions.create(**ASK, tool_choice=choice).choices[0].message.tool_calls
    assert made.function.name == "weather"
    assert json.loads(made.function.arguments) == json.loads(text).get("arguments", {"city": "Paris"})
