"""`serve` over a real llama-server with the embedded target model: every answer of a thinking model has content."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from scaffolding_ext import NativeGenerationController, OpenAIWorker, ScaffoldingLlm
from scaffolding_ext.serving.app import Front
from scaffolding_ext.serving.served_stack import ServedStack
from scaffolding_ext.serving.server import FrontThread
from scaffolding_ext.serving.settings import Limits
from scaffolding_ext.tinylm.grammar import sample_problem

openai = pytest.importorskip("openai")
pytest.importorskip("gguf")

MODEL = "tinylm/target"
QUESTIONS = [sample_problem(rng, "held_out").question for rng in [random.Random(5)] for _ in range(6)]

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def front(server: Any) -> Iterator[tuple[Front, FrontThread]]:
    with OpenAIWorker(server.url, MODEL) as worker:
        controller = NativeGenerationController({"temperature": 0.0, "max_tokens": 900})
        stack = ServedStack("model", ScaffoldingLlm(controller, {"generation": worker}, seed=0), Limits())
        served = Front([stack])
        with FrontThread(served) as thread:
            yield served, thread


def answered(thread: FrontThread, question: str, stream: bool, **fields: Any) -> tuple[str, dict[str, Any]]:
    """Return the text, and the field `scaffolding`."""
    asked: dict[str, Any] = {"model": "model", "messages": [{"role": "user", "content": question}], **fields}
    with openai.OpenAI(base_url=f"{thread.url}/v1", api_key="none", max_retries=0) as client:
        if not stream:
            choice = client.chat.completions.create(**asked).choices[0]
            return choice.message.content, choice.scaffolding
        chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**asked, stream=True)]
        return "".join(chunk.delta.content or "" for chunk in chunks), chunks[-1].scaffolding


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "causes"),
    [
        ({"max_tokens": 24}, {"length"}),
        ({"extra_body": {"thinking_budget": 16}}, {"budget", "budget_ignored", None}),
        ({}, {"loop", None}),
    ],
)
def test_every_answer_has_content(front: Any, fields: dict[str, Any], causes: set[str | None], stream: bool) -> None:
    served, thread = front
    for question in QUESTIONS:
        content, extras = answered(thread, question, stream, **fields)
        assert content.strip()
        assert "</think>" not in content
        assert extras.get("forced_answers", {None: 1}).keys() <= causes
        if "extra_body" in fields:
            kept = extras["thinking_budget"]
            assert kept[-1]["by"] == "serve"
            assert kept[-1]["num_thinking"] <= 16 + 8  # the slack that a server has
    assert b"scaffolding_forced_answers_total" in served.metrics.page()


def test_chains_that_loop_are_ended_there(front: Any) -> None:
    """Decoded greedily, about half of the embedded model's chains repeat a check of their own again and again."""
    _, thread = front
    reasons = [answered(thread, question, False)[1]["exit_reason"] for question in QUESTIONS]
    assert "loop" in reasons
    assert set(reasons) <= {"loop", "end"}
