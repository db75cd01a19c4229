"""Sampling fields reach TensorRT-LLM, or are refused by name."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.prompts.sampling_params import SAMPLING_FIELDS
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.workers.shared.sampling_defaults import SamplingDefaults
from scaffolding_ext.workers.trtllm.arguments import sampling_arguments

KNOWN = (
    *("max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "logprobs", "min_tokens", "ignore_eos"),
    *("frequency_penalty", "presence_penalty", "return_context_logits", "embedding_bias"),
)


def arguments(known: tuple[str, ...] = KNOWN, **fields: Any) -> dict[str, Any]:
    return sampling_arguments(GenerationTask(**fields), 9, SamplingDefaults(), known, "1.2.1", 10)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"top_k": 1}),
        ({"temperature": 0.0, "top_p": 0.9}, {"top_k": 1}),
        ({"temperature": 0.7}, {"temperature": 0.7, "top_p": 1.0}),
        ({"top_p": 0.9}, {"temperature": 1.0, "top_p": 0.9}),
        ({"top_k": 5}, {"temperature": 1.0, "top_p": 1.0, "top_k": 5}),
        (
            {"seed": 3, "min_tokens": 2, "ignore_eos": True},
            {"top_k": 1, "seed": 3, "min_tokens": 2, "ignore_eos": True},
        ),
        ({"stop": "x", "num_logprobs": 4}, {"top_k": 1, "logprobs": 4}),
        ({"num_logprobs": 0, "stop": [], "presence_penalty": 0.0}, {"top_k": 1}),
        (
            {"frequency_penalty": 0.5, "presence_penalty": -1.0},
            {"top_k": 1, "frequency_penalty": 0.5, "presence_penalty": -1.0},
        ),
    ],
)
def test_what_a_task_asks_for_goes_over(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert arguments(**fields) == {"max_tokens": 9, **expected}


REFUSED: dict[str, Any] = {
    "best_of": 2,
    "echo": True,
    "n": 2,
    "reasoning_effort": "low",
    "suffix": "x",
    "skip_tokenizer": True,
    "skip_detokenizer": True,
}


def test_what_cannot_be_honoured_is_refused_by_name() -> None:
    for name, value in REFUSED.items():
        with pytest.raises(InvalidTaskError, match=f"^{name} is .*TRTLLMWorker cannot honour it"):
            arguments(**{name: value})


def test_a_bias_is_a_tensor_over_the_vocabulary() -> None:
    assert arguments(logit_bias={"5": 1.5, 2: -1})["embedding_bias"].tolist() == [0, 0, -1, 0, 0, 1.5, 0, 0, 0, 0]
    with pytest.raises(InvalidTaskError, match="logit_bias names token 10; it must be an id of the model, 0 to 9"):
        arguments(logit_bias={10: 1.0})


def test_every_sampling_field_is_forwarded_or_refused() -> None:
    """Except `user`, which changes nothing, and `stop`, which the worker matches."""
    values = {
        "logit_bias": {"5": 1.0},
        "num_logprobs": 3,
        "seed": 5,
        "max_tokens": 4,
        "temperature": 0.3,
        "top_p": 0.4,
    }
    unset = arguments()
    for name in SAMPLING_FIELDS - {"user", "max_tokens", "stop"}:
        kind = {field.name: field.type for field in dataclasses.fields(GenerationTask)}[name]
        value = values.get(name, True if "bool" in str(kind) else 2)
        if name in {*REFUSED, "logit_bias"}:
            continue  # by the tests above
        assert arguments(**{name: value}) != unset, name


def test_what_a_release_does_not_take_is_refused_by_name() -> None:
    with pytest.raises(
        InvalidTaskError, match=r"^min_tokens is 3; the SamplingParams of TensorRT-LLM 1\.2\.1 has no such field"
    ):
        arguments(tuple(name for name in KNOWN if name != "min_tokens"), min_tokens=3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -1}, "temperature is -1; it must be at least 0"),
        ({"num_logprobs": 101}, "num_logprobs is 101; TensorRT-LLM reports at most 100"),
        ({"top_p": 0.0, "temperature": 1.0}, r"top_p is 0\.0; it must be above 0 and at most 1"),
    ],
)
def test_values_out_of_range_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTaskError, match=message):
        arguments(**fields)
