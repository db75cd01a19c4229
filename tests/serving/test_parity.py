"""Same seed, same answers as in process: plain, DynasorCoT and a vote of 4, on an embedded model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.engines.serve_parity import CONTROLLERS
from scaffolding_ext.evaluation.run.datasets import load_dataset
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker


@pytest.fixture(scope="module")
def draft() -> Iterator[HuggingFaceWorker]:
    with HuggingFaceWorker("tinylm/draft") as worker:
        yield worker


@pytest.mark.parametrize("name", sorted(CONTROLLERS))
def test_answers_over_http_are_those_in_process(serve: Any, draft: HuggingFaceWorker, name: str) -> None:
    served = serve(controller=CONTROLLERS[name](48), model_worker=draft)
    prompts = [problem.prompt for problem in load_dataset("tinylm:held_out", num_samples=2, seed=0)]
    options = {"controller": served.stack.variants.own, "most_tokens": 1 << 20}
    told = [served.stack.llm.generate(prompt, seed=number, **options).answer for number, prompt in enumerate(prompts)]
    with served.client() as client:
        for number, prompt in enumerate(prompts):
            asked: Any = {"model": "model", "seed": number, "messages": [{"role": "user", "content": prompt}]}
            choice = client.chat.completions.create(**asked).choices[0]
            chunks = list(client.chat.completions.create(**asked, stream=True))
            assert choice.scaffolding["answer"] == told[number]
            assert chunks[-1].choices[0].scaffolding["answer"] == told[number]
