"""Sampling fields of generation tasks, and their refusal by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.prompts.sampling_params import GUIDED_DECODING, sampling_defaults
from scaffolding_ext.protocol import GenerationTask, standins

# Values beside None and the default that ask for nothing.
_OFF: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "logit_bias": ({},),
    "min_tokens": (0,),
    "num_logprobs": (0,),
    "stop": ("",),
    "suffix": ("",),
    "top_k": (0,),
    "user": ("",),
}
# Sampling fields with the values that ask for nothing: those of the stand-in, since a release may lack some.
NEUTRAL: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {name: (None, default, *_OFF.get(name, ())) for name, default in sampling_defaults(standins.GenerationTask).items()}
)


# What a task's `custom_input_params` ask of an engine beyond its fields.
ENGINE_FIELDS = (GUIDED_DECODING, "stop_token_ids")


def is_set(task: GenerationTask, name: str) -> bool:
    """Whether a field asks for something; a release of TensorRT-LLM may lack it."""
    neutral = NEUTRAL[name]
    return getattr(task, name, neutral[0]) not in neutral


def refuse(task: GenerationTask, names: Collection[str], worker: str) -> None:
    """Refuse fields (also those of `ENGINE_FIELDS`) that ask for something that the worker cannot do.

    Raises:
        InvalidTaskError: One of them does.
    """
    for name in ENGINE_FIELDS:
        if (task.custom_input_params or {}).get(name):
            raise InvalidTaskError(
                f"custom_input_params has {name}, which {worker} cannot honour: leave it out, or take TRTLLMWorker"
            )
    for name in names:
        if is_set(task, name):
            raise InvalidTaskError(
                f"{name} is {getattr(task, name)!r}, which {worker} cannot honour: leave it at {NEUTRAL[name][0]!r}"
            )
