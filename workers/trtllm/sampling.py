"""Turns a task's fields into those of `SamplingParams`; a field that it cannot honour is refused by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.prompts.sampling_params import GUIDED_DECODING
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.notes import notes_of
from scaffolding_ext.protocol.stop_strings import stop_strings
from scaffolding_ext.workers.shared.sampling_defaults import SamplingDefaults
from scaffolding_ext.workers.shared.task_reading import integer, is_set, number
from scaffolding_ext.workers.trtllm.loading import LoadedLlm
from scaffolding_ext.workers.trtllm.release import Release

# Fields that no release can honour for a task, and why.
_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "best_of": "the tokens of the other samples would not be counted: send a task for each sample",
        "echo": "the output of a task is only the generated text: put the input before it yourself",
        "n": "a task has one output: send a task for each",
        "reasoning_effort": "the chat template reads it, not the engine: put it into the prompt",
        "suffix": "the LLM API cannot fill in text before a suffix: leave it out",
        "skip_tokenizer": "the prompt must be tokens: give input_tokens, and leave it out",
        "skip_detokenizer": "controllers need the text: leave it out; the token ids are in output_tokens",
    }
)

_OFF: Mapping[str, float] = MappingProxyType(
    {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0}
)

# Fields that are passed on unchanged if they ask for something.
_SAME = ("frequency_penalty", "presence_penalty", "min_tokens", "ignore_eos", "return_context_logits", "seed")


def sampling_arguments(
    task: GenerationTask,
    max_tokens: int,
    defaults: SamplingDefaults,
    known: Collection[str],
    version: str,
    vocab_size: int,
) -> dict[str, Any]:
    """The keyword arguments of a task's `SamplingParams`.

    Greedy decoding sets `top_k=1`. Sampling sets a temperature and a top-p that are never None, because releases treat
    None differently.

    Args:
        max_tokens: Tokens to generate at most; the default of `SamplingParams` is 32.
        defaults: How the model is sampled if the task sets no temperature.
        known: The fields that the installed release's `SamplingParams` takes.
        version: The installed release, for errors.

    Raises:
        InvalidTaskError: A field is unusable, or asks for something that is impossible.
    """
    for name, reason in _REFUSED.items():
        if is_set(task, name):
            raise InvalidTaskError(f"{name} is {getattr(task, name)!r}; TRTLLMWorker cannot honour it ({reason})")
    arguments: dict[str, Any] = {"max_tokens": max_tokens, **_selection(task, defaults)}
    arguments |= {name: getattr(task, name) for name in _SAME if is_set(task, name)}
    stop = stop_strings(task.stop)
    if stop:
        arguments["stop"] = list(stop)
    num_logprobs = integer("num_logprobs", task.num_logprobs, 0, 0)
    if num_logprobs:
        arguments["logprobs"] = num_logprobs
    if is_set(task, "logit_bias"):
        arguments["embedding_bias"] = _bias(task.logit_bias or {}, vocab_size)
    unknown = sorted(arguments.keys() - set(known))
    if unknown:
        raise InvalidTaskError(
            f"{unknown[0]} is {arguments[unknown[0]]!r}; the SamplingParams of TensorRT-LLM {version} has no such "
            "field: leave it out"
        )
    return arguments


def hinted_arguments(task: GenerationTask, loaded: LoadedLlm) -> dict[str, Any]:
    """Fields of `SamplingParams` that no task has a field for: `stop_token_ids`, `guided_decoding`, a thinking budget.

    Raises:
        InvalidTaskError: A field is unusable, or the LLM would ignore it.
    """
    params = task.custom_input_params or {}
    fields: dict[str, Any] = {}
    if params.get("stop_token_ids"):
        ids = params["stop_token_ids"]
        if not isinstance(ids, list) or not all(type(token) is int and 0 <= token < loaded.vocab_size for token in ids):
            raise InvalidTaskError(
                f"stop_token_ids is {ids!r}; it must be a list of ids from 0 to {loaded.vocab_size - 1}"
            )
        fields["stop_token_ids"] = list(ids)  # a copy, because TensorRT-LLM adds to it
    if params.get(GUIDED_DECODING):
        guide = params[GUIDED_DECODING]
        if loaded.argument("guided_decoding_backend") is None:
            raise InvalidTaskError(
                f"guided_decoding is {guide!r}, but the LLM was loaded without a guided_decoding_backend and would "
                "ignore it: load it with llm_args: {guided_decoding_backend: xgrammar}"
            )
        try:
            fields[GUIDED_DECODING] = loaded.release.setting("GuidedDecodingParams")(**guide)
        except TypeError as error:
            raise InvalidTaskError(
                f"guided_decoding is {guide!r}; it must be a mapping such as {{'regex': ...}} ({error})"
            ) from None
    budget = notes_of(task).thinking
    if budget is not None and loaded.keeps_thinking_budgets:
        fields["thinking_token_budget"] = budget.max_tokens
    return fields


def off_in(release: Release) -> dict[str, float]:
    """Values that switch off what an LLM with `generation_config: auto` would take from the model's own file."""
    return {name: _OFF[name] for name in _OFF.keys() & release.sampling_fields}


def _bias(logit_bias: Mapping[Any, Any], vocab_size: int) -> Any:
    """A float32 tensor of shape [vocab_size]."""
    import torch

    bias = torch.zeros(vocab_size, dtype=torch.float32)
    for token, value in logit_bias.items():
        if not str(token).isdecimal() or int(token) >= vocab_size:
            raise InvalidTaskError(
                f"logit_bias names token {token!r}; it must be an id of the model, 0 to {vocab_size - 1}"
            )
        bias[int(token)] = number("logit_bias", value, 0.0)
    return bias


def _selection(task: GenerationTask, defaults: SamplingDefaults) -> dict[str, Any]:
    """How the next token is chosen."""
    temperature, top_p, top_k = defaults.selection(task)
    if temperature == 0:
        return {"top_k": 1}
    return {"temperature": temperature, "top_p": top_p} | ({"top_k": top_k} if top_k else {})
