"""A ScoreTask gives one result, to 1e-3, whichever worker serves it: in process, over HTTP, over the fake LLM API."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from scaffolding_ext.protocol import TaskStatus, Worker
from scaffolding_ext.protocol.meta import token_counts_of
from scaffolding_ext.protocol.tasks import ScoreTask

pytest.importorskip("torch")
pytest.importorskip("openai")
import torch

from scaffolding_ext.prompts.tokenizers import load_tokenizer, model_folder
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker
from scaffolding_ext.workers.openai.worker import OpenAIWorker
from scaffolding_ext.workers.trtllm.worker import TRTLLMWorker
from tests.servers.openai_server import OpenAIServer

MODEL = "tinylm/target"
TOLERANCE = 1e-3
PROMPT = "Start with 5. Apply a+3,b-2. Find the total."
CHAIN = "First 5+3=8, then 8-2=6, so the total is 6."
IDS = load_tokenizer(MODEL)(PROMPT + CHAIN).input_ids
CASES: dict[str, dict[str, Any]] = {
    "all but the first token": {"input_tokens": IDS[:1], "continuation_tokens": IDS[1:]},
    "the last token alone": {"input_tokens": IDS[:-1], "continuation_tokens": IDS[-1:]},
    "the second of two tokens": {"input_tokens": IDS[:1], "continuation_tokens": IDS[1:2]},
    "unlikely tokens": {"input_tokens": IDS, "continuation_tokens": IDS[::-1]},
    "longer than a block of KV": {"input_tokens": IDS * 2, "continuation_tokens": IDS * 2},
    "text": {"input_str": PROMPT, "continuation_str": CHAIN},
}


@pytest.fixture(scope="module")
def in_process() -> Iterator[Worker]:
    with HuggingFaceWorker(MODEL, max_batch_size=4) as worker:
        yield worker


@pytest.fixture(scope="module")
def over_http() -> Iterator[Worker]:
    with (
        HuggingFaceWorker(MODEL, max_batch_size=4) as served,
        OpenAIServer(served, MODEL) as server,
        OpenAIWorker(server.url, MODEL) as worker,
    ):
        assert "ScoreTask" not in worker.refused
        yield worker


@pytest.fixture(scope="module")
def network() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_folder(MODEL), dtype=torch.float32).eval()


def scores(worker: Worker, fields: dict[str, Any]) -> list[float]:
    task = ScoreTask(**fields)
    assert asyncio.run(worker.run_task(task)) is TaskStatus.SUCCESS
    counts = token_counts_of(task)
    assert counts is not None
    assert counts.decoded == 0
    return task.logprobs or []


def scores_of_one_pass(network: Any, fields: dict[str, Any]) -> list[float]:
    """By the model alone: what stands at one position scores the token behind it."""
    if "input_str" in fields:  # the border of these texts is one of tokens
        prompt, ids = load_tokenizer(MODEL)(fields["input_str"]).input_ids, IDS
    else:
        prompt, ids = fields["input_tokens"], fields["input_tokens"] + fields["continuation_tokens"]
    with torch.no_grad():
        steps = network(torch.tensor([ids])).logits[0].log_softmax(-1)
    return [float(steps[i - 1, ids[i]]) for i in range(len(prompt), len(ids))]


@pytest.mark.parametrize("name", CASES)
def test_in_process_they_are_those_of_one_pass(in_process: Worker, network: Any, name: str) -> None:
    found = scores(in_process, CASES[name])
    assert found == pytest.approx(scores_of_one_pass(network, CASES[name]), abs=TOLERANCE)
    assert found


@pytest.mark.parametrize("name", CASES)
def test_over_http_they_are_those_in_process(in_process: Worker, over_http: Worker, name: str) -> None:
    for _ in range(2):  # the second time with what the server has kept
        assert scores(over_http, CASES[name]) == pytest.approx(scores(in_process, CASES[name]), abs=TOLERANCE)


@pytest.mark.usefixtures("tensorrt_llm")
@pytest.mark.parametrize("enable_block_reuse", [True, False])
def test_over_the_llm_api_they_are_those_in_process(in_process: Worker, enable_block_reuse: bool) -> None:
    with TRTLLMWorker(MODEL, enable_block_reuse=enable_block_reuse, serve_scores=True) as worker:
        for fields in [*CASES.values(), *CASES.values()]:
            assert scores(worker, fields) == pytest.approx(scores(in_process, fields), abs=TOLERANCE)
