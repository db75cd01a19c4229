"""Thinking that a chat server has separated stays apart through `serve`, whatever the stack says of the family."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("openai")

import openai

from scaffolding_ext.serving.app import Front
from scaffolding_ext.serving.served_stack import ServedStack
from scaffolding_ext.serving.server import FrontThread
from scaffolding_ext.serving.settings import Limits
from scaffolding_ext.stack.build import build_stack
from scaffolding_ext.stack.load import load_config
from scaffolding_ext.testing import ScriptedWorker
from tests.servers.openai_server import OpenAIServer


def asked(client: Any, stream: bool) -> tuple[str, str]:
    """Content and reasoning of an answer."""
    messages = [{"role": "user", "content": "5 and 3?"}]
    reply = client.chat.completions.create(model="m", messages=messages, stream=stream)
    said = [chunk.choices[0].delta for chunk in reply if chunk.choices] if stream else [reply.choices[0].message]
    return (
        "".join(each.content or "" for each in said),
        "".join(getattr(each, "reasoning_content", None) or "" for each in said),
    )


@pytest.mark.parametrize("flavor", ["auto", "openai", "vllm"])
@pytest.mark.parametrize("prompt", [None, {"prompt_suffix": " Briefly."}, {"family": "instruct"}])
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
            assert asked(client, stream) == ("The answer is 8.", "5 and 3 are 8.")
