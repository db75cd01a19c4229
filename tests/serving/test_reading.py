"""The front reads a text as its prompt and its marks say, whole or streamed, whoever separates its thinking."""

from __future__ import annotations

import copy
from typing import Any

import openai
import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.prompts.tokenizers import load_tokenizer
from scaffolding_ext.protocol import Controller
from scaffolding_ext.serving.app import Front
from scaffolding_ext.serving.served_stack import ServedStack
from scaffolding_ext.serving.server import FrontThread
from scaffolding_ext.serving.settings import Limits
from scaffolding_ext.stack.build import build_stack
from scaffolding_ext.stack.load import load_config
from scaffolding_ext.testing import ScriptedWorker
from tests.servers.openai_server import OpenAIServer

pytest.importorskip("transformers")

TURN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if messages[-1].content.endswith('/think') %}<think>\n{% endif %}{% endif %}"
)


def prompted(family: str = "deepseek_r1") -> Controller:
    tokenizer = copy.deepcopy(load_tokenizer("tinylm/draft"))
    tokenizer.chat_template = TURN
    controller = NativeGenerationController({"max_tokens": 900})
    controller.prompting = Prompting(tokenizer, family)
    return controller


def asked(words: str, **more: Any) -> dict[str, Any]:
    return {"model": "model", "messages": [{"role": "user", "content": words}], **more}


CASES = [
    ("Q", "def add(a, b):\n    return a + b\n", "", "def add(a, b):\n    return a + b\n"),
    ("Q", "1. a\n2. b", "", "1. a\n2. b"),
    ("Q", "One closes with </think>, they say.", "", "One closes with </think>, they say."),
    ("Q", "<think>hm</think>\n\nIt is 4.", "hm", "It is 4."),
    ("Q", "<think>hm</think>First. <think>or</think>Last.", "hmor", "First. Last."),
    ("Q /think", "hm</think>\n\nIt is 4.</think>\n", "hm", "It is 4."),
    ("Q /think", "I end with `</think>`.</think>It is 4.", "I end with `</think>`.", "It is 4."),
]


@pytest.mark.parametrize(("words", "reply", "reasoning", "content"), CASES)
def test_a_text_is_shown_as_it_is_meant(serve: Any, words: str, reply: str, reasoning: str, content: str) -> None:
    served = serve(reply, prompted())
    with served.client() as client:
        message = client.chat.completions.create(**asked(words)).choices[0].message
        chunks = [chunk.choices[0].delta for chunk in client.chat.completions.create(**asked(words, stream=True))]
    assert (message.reasoning_content, message.content) == (reasoning, content)
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in chunks) == reasoning
    assert "".join(delta.content or "" for delta in chunks) == content
    assert len(served.worker.tasks) == 2  # one each


# ---- prompts that close thinking, of a model whose marks are known


class Guided(ScriptedWorker):
    """A worker whose engine keeps answers to a schema."""

    guides_json = True


def closing() -> Controller:
    """Its prompts close thinking, unless the last turn asks for it."""
    tokenizer = copy.deepcopy(load_tokenizer("tinylm/draft"))
    tokenizer.chat_template = TURN.replace(
        "{% endif %}{% endif %}", "{% else %}<think>\n</think>\n{% endif %}{% endif %}"
    )
    controller = NativeGenerationController({"max_tokens": 900})
    controller.prompting = Prompting.for_model("nowhere", tokenizer=tokenizer)
    return controller


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("words", "reasoning", "content"),
    [("Q", "", "hm</think>It is 4."), ("Q /think", "hm", "It is 4.")],
)
def test_each_prompt_says_if_its_text_thinks(
    serve: Any, words: str, reasoning: str, content: str, stream: bool
) -> None:
    served = serve("hm</think>It is 4.", closing())
    with served.client() as client:
        got = client.chat.completions.create(**asked(words, stream=stream))
        said = [part.choices[0].delta for part in got] if stream else [got.choices[0].message]
    assert "".join(getattr(each, "reasoning_content", None) or "" for each in said) == reasoning
    assert "".join(each.content or "" for each in said) == content


def test_a_stop_and_a_form_of_the_answer_hold_behind_a_closed_prompt_only(serve: Any) -> None:
    served = serve(controller=closing(), model_worker=Guided('{"x": 4}'))
    form = {"response_format": {"type": "json_object"}, "stop": ["END"]}
    with served.client() as client:
        answer = client.chat.completions.create(**asked("Q", **form))
        with pytest.raises(openai.BadRequestError, match="would hold for the thinking"):
            client.chat.completions.create(**asked("Q /think", **form))
    assert answer.choices[0].message.content == '{"x": 4}'
    (task,) = served.stack.llm.workers["generation"].tasks
    assert (task.stop, task.custom_input_params) == (["END"], {"guided_decoding": {"json_object": True}})


def test_an_empty_answer_behind_a_closed_prompt_is_not_asked_to_close_thinking(serve: Any) -> None:
    served = serve("", closing())
    with served.client() as client:
        answer = client.chat.completions.create(**asked("Q"))
    assert answer.choices[0].message.content == ""
    assert len(served.worker.tasks) == 1


def test_a_stream_with_overlapping_stop_strings_ends_well(serve: Any) -> None:
    controller = NativeGenerationController()
    controller.prompting = Prompting.for_model("tinylm/target")
    text = "I think.</think>\n" + "It is 4. END OF ANSWER"
    served = serve(text, controller)
    asked: Any = {"model": "model", "messages": [{"role": "user", "content": "2+2?"}], "stop": ["END OF ANSWER", "OF"]}
    with served.client() as client:
        whole = client.chat.completions.create(**asked).choices[0].message.content
        chunks = list(client.chat.completions.create(**asked, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole == "It is 4. END "


def test_a_stop_string_ends_a_text_whose_chain_runs_on_to_the_limit(serve: Any) -> None:
    controller = NativeGenerationController()
    controller.prompting = Prompting.for_model("tinylm/target")
    served = serve("I think.</think>\nIt is 4. END " + "and so on " * 9, controller)
    asked: Any = {"model": "model", "messages": [{"role": "user", "content": "2+2?"}], "stop": ["END"]}
    with served.client() as client:
        choice = client.chat.completions.create(**asked, max_tokens=60).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("It is 4. ", "stop")
    assert choice.scaffolding["exit_reason"] == "length"


def both_parts(client: Any, stream: bool) -> tuple[str, str]:
    """Content and reasoning of an answer."""
    messages = [{"role": "user", "content": "5 and 3?"}]
    reply = client.chat.completions.create(model="m", messages=messages, stream=stream)
    said = [chunk.choices[0].delta for chunk in reply if chunk.choices] if stream else [reply.choices[0].message]
    return (
        "".join(each.content or "" for each in said),
        "".join(getattr(each, "reasoning_content", None) or "" for each in said),
    )


@pytest.mark.parametrize("flavor", ["auto", "openai"])
@pytest.mark.parametrize("prompt", [None, {"family": "instruct"}])
@pytest.mark.parametrize("stream", [False, True])
def test_thinking_is_reasoning_and_not_content(prompt: dict[str, Any] | None, stream: bool, flavor: str) -> None:
    text = "<think>5 and 3 are 8.</think>The answer is 8."
    with OpenAIServer(ScriptedWorker(text), "m", reasons=True) as server:
        args = {"base_url": server.url, "model": "m", "endpoint": "chat", "flavor": flavor}
        worker = {"type": "OpenAIWorker", "args": args}
        native = {"type": "NativeGenerationController", "args": {"sampling_params": {"max_tokens": 64}}}
        stack = {"controller": native, "workers": {"generation": worker}}
        with (
            build_stack(load_config(stack if prompt is None else {**stack, "prompt": prompt})) as llm,
            FrontThread(Front([ServedStack("m", llm, Limits())], Limits())) as front,
            openai.OpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as client,
        ):
            assert both_parts(client, stream) == ("The answer is 8.", "5 and 3 are 8.")
