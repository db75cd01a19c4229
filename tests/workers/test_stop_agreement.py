"""Stop strings give one text, one list of token ids and one search on HuggingFaceWorker and TRTLLMWorker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.meta import token_counts_of

pytest.importorskip("torch")
from scaffolding_ext.controllers.tree.search import SearchController
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker
from scaffolding_ext.workers.trtllm.worker import TRTLLMWorker

MODEL = "tinylm/target"
QUESTION = "Start with 5. Apply a+3,b-2. Find the total."
ANSWER = f"{QUESTION}\n<think>\nok</think>\n"  # the model answers it in a few words
pytestmark = [
    pytest.mark.parametrize("tensorrt_llm", ["1.2.1", "newest"], indirect=True),
    pytest.mark.usefixtures("tensorrt_llm"),
]


@pytest.fixture
def workers() -> Iterator[list[Any]]:
    with HuggingFaceWorker(MODEL) as reference, TRTLLMWorker(MODEL, max_seq_len=2048) as engine:
        yield [reference, engine]


def run(worker: Any, **fields: Any) -> GenerationTask:
    task = GenerationTask(**{"input_str": ANSWER, "max_tokens": 160, "temperature": 0.0, **fields})
    asyncio.run(worker.run_task(task))
    return task


def test_tasks_stop_at_the_same_token(workers: list[Any]) -> None:
    for stop in (" \\", "swe", "<|end|>"):  # a token, inside tokens, and a special token
        reference, engine = (run(worker, stop=[stop], ignore_eos=True) for worker in workers)
        assert reference.finish_reason == engine.finish_reason == "stop", stop
        assert (engine.output_str, engine.output_tokens) == (reference.output_str, reference.output_tokens), stop
        counts = token_counts_of(engine)
        assert counts is not None
        assert counts.decoded <= len(engine.output_tokens or ()) + 8, stop


def test_a_search_whose_steps_end_inside_tokens_takes_the_same_steps(workers: list[Any]) -> None:
    found = []
    for worker in workers:
        controller = SearchController(
            "Beam",
            steps={"ends": ["te"], "max_tokens": 64},
            budget=4,
            max_tokens=256,
            sampling_params={"temperature": 0.7, "top_k": 1},
        )
        with ScaffoldingLlm(controller, {"generation": worker}, seed=3) as llm:
            result = llm.generate(QUESTION)
        output = result.outputs[0]
        found.append((result.answer, output.text, result.program.ledger.total.decoded))
    assert found[0][:2] == found[1][:2]
    assert abs(found[0][2] - found[1][2]) <= 8 * 16
