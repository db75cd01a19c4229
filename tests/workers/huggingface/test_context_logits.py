"""HuggingFaceWorker gives the logits of a prompt, which a process reward model is asked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from transformers import AutoModelForCausalLM

from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.tokenizers import load_tokenizer, model_folder
from scaffolding_ext.protocol import Controller, GenerationTask, TaskStatus
from scaffolding_ext.testing import float32_tolerance
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

MODEL = "tinylm/draft"
TOLERANCE = float32_tolerance(longest_sum=1024, num_sums=24, magnitude=32.0)
IDS = list(range(5, 75))


@pytest.fixture(scope="module")
def worker() -> Iterator[HuggingFaceWorker]:
    with HuggingFaceWorker(MODEL, max_batch_size=4, max_seq_len=256, prefill_chunk=32) as worker:
        yield worker


@pytest.fixture(scope="module")
def reference() -> Any:
    return AutoModelForCausalLM.from_pretrained(model_folder(MODEL)).eval()


def logits_of(reference: Any, ids: list[int]) -> Any:
    with torch.inference_mode():
        return reference(torch.tensor([ids])).logits[0]


def run(worker: Any, *tasks: Any) -> None:
    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(worker.run_task(task) for task in tasks))

    assert set(asyncio.run(all_of_them())) == {TaskStatus.SUCCESS}


def test_they_are_those_of_every_prompt_token_though_others_share_its_prefix(worker: Any, reference: Any) -> None:
    plain = GenerationTask(input_tokens=IDS, max_tokens=4, temperature=0.0)
    run(worker, plain)  # its KV is there to be reused
    asked = [
        GenerationTask(input_tokens=IDS[:length], max_tokens=4, return_context_logits=True, temperature=0.0)
        for length in (70, 1)
    ]
    beside = GenerationTask(input_tokens=IDS, max_tokens=4, temperature=0.0)
    run(worker, *asked, beside)
    for task in asked:
        assert task.context_logits.shape == (len(task.input_tokens or ()), reference.config.vocab_size)
        assert torch.allclose(task.context_logits, logits_of(reference, task.input_tokens), rtol=0, atol=TOLERANCE)
    assert asked[0].output_tokens == beside.output_tokens == plain.output_tokens
    assert plain.context_logits is beside.context_logits is None


class StepScores(Controller):
    """Does what upstream's PRMController does: one score a text, the product over the marks behind its steps."""

    mark = "\n"

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.scores: list[float] = []

    def process(self, tasks: Any, **kwargs: Any) -> Any:
        asked = []
        for task in tasks:
            steps = task.input_str.split(". ")
            text = "".join(step + self.mark for step in steps)
            score = GenerationTask.create_from_prompt(text)
            score.worker_tag, score.max_tokens, score.return_context_logits = "reward", 1, True
            asked.append(score)
        yield asked
        for score in asked:
            assert score.context_logits is not None
            ids = self.tokenizer.encode(score.input_str, return_tensors="pt").to(score.context_logits.device)
            is_mark = (ids == self.tokenizer.encode(self.mark)[0])[0]
            probs = torch.softmax(score.context_logits, -1)[is_mark]
            self.scores.append(torch.prod(probs[:, 1]).item() + torch.prod(probs[:, 7]).item())
        tasks[0].output_str, tasks[0].output_tokens = json.dumps(self.scores), []


def test_a_controller_like_upstreams_prm_controller_scores_with_it(worker: Any, reference: Any) -> None:
    tokenizer = load_tokenizer(MODEL)
    with ScaffoldingLlm(StepScores(tokenizer), {"reward": worker}) as llm:
        (score,) = json.loads(llm.generate("Start with 5. Add 3. The answer is 8.").outputs[0].text)
    ids = tokenizer.encode("Start with 5\nAdd 3\nThe answer is 8.\n")
    marks = [index for index, token in enumerate(ids) if token == tokenizer.encode("\n")[0]]
    assert len(marks) == 3
    probs = torch.softmax(logits_of(reference, ids)[marks], -1)
    assert score == pytest.approx(torch.prod(probs[:, 1]).item() + torch.prod(probs[:, 7]).item(), rel=1e-3)
