"""Texts read as transformers reads them by its own response templates, for the families that it has one of."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("transformers")

from scaffolding_ext.prompts.chat_template import declared_marks
from scaffolding_ext.prompts.model_files import family_name
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.prompts.tokenizers import load_tokenizer

NUM_TEXTS = 300


def templates() -> dict[str, Any]:
    """The response templates of transformers by model type; its server has them for tokenizers without one."""
    served = pytest.importorskip("transformers.cli.serving.utils")
    found = getattr(served, "_RESPONSE_TEMPLATE_FALLBACKS", None)
    if found is None:
        pytest.skip("this transformers has no response templates")
    return {types[0]: template for types, template in found.items()}


def written(rng: random.Random, opening: str, close: str, end: str, is_open: bool, is_closed: bool) -> str:
    """A model's text: thinking that the prompt or the model opens, and an answer, with or without an end."""
    words = ("so", "2 + 2", "a < b", "it is\nfour", "\\boxed{4}", "x > y.", "\n\n")
    thinking, answer = (" ".join(rng.choices(words, k=rng.randint(1, 6))) for _ in range(2))
    thinks = is_open or (not is_closed and rng.random() < 0.6)
    text = f"{'' if is_open else opening}{thinking}{close}\n\n{answer}" if thinks else answer
    return text + rng.choice(("", end))


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3_5", "gemma4"])
def test_thinking_and_answer_are_those_of_transformers(model_type: str) -> None:
    from transformers.utils.chat_parsing import parse_response

    template = templates()[model_type]
    anchor, end = template["start_anchor"], {"gemma4": "<turn|>"}.get(model_type, "<|im_end|>")
    field = template["fields"]["reasoning_content"]
    derived = declared_marks(template)
    assert derived is not None
    prompting = Prompting(load_tokenizer("tinylm/draft"), family_name(derived.marks))
    begun = anchor if isinstance(anchor, str) else anchor[0]
    tails = {
        "": (False, False),
        f"{field['open']}\n": (True, False),
        f"{field['open']}\n{field['close']}": (False, True),
    }
    rng = random.Random(5)
    differing = []
    for number in range(NUM_TEXTS):
        tail, (is_open, is_closed) = list(tails.items())[number % 3]
        text = written(rng, field["open"], field["close"], end, is_open, is_closed)
        theirs = parse_response(text, template, prefix=begun + tail)
        ours = prompting.split(begun + tail, text.removesuffix(end))  # no worker shows the end of a turn
        expected = (theirs.get("reasoning_content") or "").strip(), (theirs.get("content") or "").strip()
        if (ours.thinking.strip(), ours.answer.strip()) != expected:
            differing.append((tail, text, ours, theirs))
    assert not differing, differing[:3]
