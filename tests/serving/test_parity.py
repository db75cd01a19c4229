"""Same seed, same texts and answers as in process: plain, DynasorCoT and a vote of 4, on an embedded model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from scaffolding_ext import DynasorCoTController, MajorityVoteController, NativeGenerationController
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.serving.bodies import ChatBody, Message
from scaffolding_ext.serving.thinking import Reading
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

SAMPLING = {"temperature": 0.7}
CONTROLLERS = {
    "plain": lambda most: NativeGenerationController({**SAMPLING, "max_tokens": most}),
    "dynasor": lambda most: DynasorCoTController(most, 4, 32, sampling_params=SAMPLING),
    "vote": lambda most: MajorityVoteController(
        NativeGenerationController({**SAMPLING, "max_tokens": most}), 4, allocation=None
    ),
}
QUESTIONS = ("Start with 5. Apply a+3,b-2. Find the total.", "Start with 16. Apply d-4,e-7,f+4. Find the total.")

FIELDS = ("reasoning_content", "content")


@pytest.fixture(scope="module")
def draft() -> Iterator[HuggingFaceWorker]:
    with HuggingFaceWorker("tinylm/draft") as worker:
        yield worker


@pytest.mark.parametrize("name", sorted(CONTROLLERS))
def test_answers_over_http_are_those_in_process(serve: Any, draft: HuggingFaceWorker, name: str) -> None:
    served = serve(controller=CONTROLLERS[name](48), model_worker=draft)
    closing = served.stack.read(ChatBody(model="model", messages=[Message(role="user", content="?")])).closing
    options = {"controller": served.stack.controller, "most_tokens": 1 << 20, "closing": closing}
    told = [served.stack.llm.generate(prompt, seed=number, **options) for number, prompt in enumerate(QUESTIONS)]
    assert len({result.outputs[0].text for result in told}) == len(QUESTIONS)
    assert name != "dynasor" or all(result.answer is not None for result in told)  # the others are cut off before it
    with served.client() as client:
        for number, prompt in enumerate(QUESTIONS):
            asked: Any = {"model": "model", "seed": number, "messages": [{"role": "user", "content": prompt}]}
            message = client.chat.completions.create(**asked).choices[0]
            chunks = list(client.chat.completions.create(**asked, stream=True))
            assert message.scaffolding["answer"] == told[number].answer
            assert chunks[-1].choices[0].scaffolding["answer"] == told[number].answer
            reading = Reading(family_named("tinylm")).split(told[number].outputs[0].text)
            assert reading.answer.strip()
            assert (message.message.reasoning_content, message.message.content) == reading[:2]
            deltas = [chunk.choices[0].delta for chunk in chunks]
            streamed = ["".join(getattr(delta, field, None) or "" for delta in deltas) for field in FIELDS]
            assert tuple(streamed) == reading[:2]
