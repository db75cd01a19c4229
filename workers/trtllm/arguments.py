"""Converts a task to arguments of `LLM.generate_async`: `SamplingParams`, KV sharing and priority.

A field that the installed release cannot honour is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.prompts.sampling_params import GUIDED_DECODING
from scaffolding_ext.protocol import GenerationTask, Task
from scaffolding_ext.protocol.meta import meta_of
from scaffolding_ext.request.program import cache_salt_of, priority_of, record
from scaffolding_ext.workers.shared.sampling_defaults import SamplingDefaults
from scaffolding_ext.workers.shared.task_reading import integer, is_set, number
from scaffolding_ext.workers.trtllm.loading import LoadedLlm
from scaffolding_ext.workers.trtllm.release import Release

NO_ORDER = (
    "the engine does not order requests by priority: load the LLM with scheduler_config.waiting_queue_policy=priority"
)
ENGINE_PRIORITY = "engine_priority"  # for the waiting queue: 0 to 1, higher is sooner, default 0.5
_LOWEST, _HIGHEST = 1, 100  # TensorRT-LLM's priorities of KV blocks
MAX_LOGPROBS = 100  # per token; the newest release refuses more


def request_keywords(task: Task, loaded: LoadedLlm) -> dict[str, Any]:
    """Keywords of any task: priority and `cache_salt`.

    Without an `engine_priority`, it is computed from the package's priority, where lower is sooner and 0 maps to 0.5.

    Raises:
        InvalidTaskError: The priority is outside its range.
    """
    params = task.custom_input_params or {}
    salt = cache_salt_of(task)
    keywords: dict[str, Any] = {} if salt is None else {"cache_salt": salt}
    given = params.get(ENGINE_PRIORITY)
    if given is not None:
        number(ENGINE_PRIORITY, given, 0.0, least=0, most=1)
    if loaded.orders_by_priority:
        own = priority_of(task)
        if given is not None or own:
            keywords["priority"] = math.atan2(1, own) / math.pi if given is None else float(given)
    elif given is not None:
        record("fallback", what=ENGINE_PRIORITY, reason=NO_ORDER)
    return keywords


def retention_priority(score: float) -> int:
    """Map a block score in [0, 1] to TensorRT-LLM's priority from 1 to 100."""
    return _LOWEST + round((_HIGHEST - _LOWEST) * score)


def why_no_retention(loaded: LoadedLlm) -> str | None:
    """Reason why the engine may ignore retention priorities of KV; None if it follows them."""
    chosen = getattr(loaded.argument("kv_cache_config"), "use_kv_cache_manager_v2", None)
    if not chosen:
        return None
    when = "takes it for Qwen, GPT-OSS, Gemma and other models" if chosen == "auto" else f"is {chosen!r}"
    return f"KV cache manager V2 has no retention priorities (#16251), and use_kv_cache_manager_v2 {when}"


def lowest_retention(config_class: Any) -> Any:
    """`KvCacheRetentionConfig` of KV that cannot be reused."""
    ranges = [config_class.TokenRangeRetentionConfig(0, None, _LOWEST)]
    return config_class(token_range_retention_configs=ranges, decode_retention_priority=_LOWEST)


def branch_retention(config_class: Any, prefix_len: int, score: float) -> Any:
    """`KvCacheRetentionConfig` of one branch.

    Args:
        prefix_len: Tokens shared by all branches.
        score: Score of the branch's blocks, in [0, 1].
    """
    token_range = config_class.TokenRangeRetentionConfig
    own = retention_priority(score)
    ranges = [token_range(prefix_len, None, own)]
    if prefix_len:
        ranges.insert(0, token_range(0, prefix_len, _HIGHEST))
    return config_class(token_range_retention_configs=ranges, decode_retention_priority=own)


# Fields that no release can honour for a task, with reasons.
_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "best_of": "the tokens of the other samples would not be counted: send a task for each sample",
        "echo": "the output is only the generated text: prepend the input yourself",
        "n": "a task has one output: send one task for each",
        "reasoning_effort": "it is read by the chat template, not the engine: put it into the prompt",
        "suffix": "the LLM API cannot fill in text before a suffix: leave it out",
        "skip_tokenizer": "the prompt must be tokens: set input_tokens, and leave it out",
        "skip_detokenizer": "controllers need the text: leave it out; the token ids are in output_tokens",
    }
)

_OFF: Mapping[str, float] = MappingProxyType(
    {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0}
)

# Fields passed on unchanged if set.
_SAME = ("frequency_penalty", "presence_penalty", "min_tokens", "ignore_eos", "return_context_logits", "seed")


def sampling_arguments(
    task: GenerationTask,
    max_tokens: int,
    defaults: SamplingDefaults,
    known: Collection[str],
    version: str,
    vocab_size: int,
) -> dict[str, Any]:
    """Keyword arguments of a task's `SamplingParams`.

    Stop strings are not among them: the engine only knows token sequences, drops those of a task with `ignore_eos`,
    and cuts their ids off.
    Greedy decoding sets `top_k=1`. Sampling sets a temperature and a top-p that are never None, because releases treat
    None differently.

    Args:
        max_tokens: Maximum tokens to generate; the default of `SamplingParams` is 32.
        defaults: Sampling of the model if the task sets no temperature.
        known: Fields of the installed release's `SamplingParams`.
        version: The installed release, for errors.

    Raises:
        InvalidTaskError: A field is unusable or impossible to honour.
    """
    for name, reason in _REFUSED.items():
        if is_set(task, name):
            raise InvalidTaskError(f"{name} is {getattr(task, name)!r}; TRTLLMWorker cannot honour it ({reason})")
    arguments: dict[str, Any] = {"max_tokens": max_tokens, **_selection(task, defaults)}
    arguments |= {name: getattr(task, name) for name in _SAME if is_set(task, name)}
    num_logprobs = integer("num_logprobs", task.num_logprobs, 0, 0)
    if num_logprobs > MAX_LOGPROBS:
        raise InvalidTaskError(f"num_logprobs is {num_logprobs}; TensorRT-LLM reports at most {MAX_LOGPROBS}: lower it")
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


def end_ids(task: GenerationTask, vocab_size: int) -> frozenset[int]:
    """Ids that end a task's text (`stop_token_ids`); the worker matches them, since `ignore_eos` disables the engine's.

    Raises:
        InvalidTaskError: They are no ids of the model.
    """
    ids = (task.custom_input_params or {}).get("stop_token_ids") or []
    if not isinstance(ids, list) or not all(type(token) is int and 0 <= token < vocab_size for token in ids):
        raise InvalidTaskError(f"stop_token_ids is {ids!r}; it must be a list of ids from 0 to {vocab_size - 1}")
    return frozenset(ids)


def hinted_arguments(task: GenerationTask, loaded: LoadedLlm) -> dict[str, Any]:
    """`SamplingParams` fields without a task field: `guided_decoding`, a thinking budget.

    Raises:
        InvalidTaskError: A field is unusable, or the LLM would ignore it.
    """
    params = task.custom_input_params or {}
    fields: dict[str, Any] = {}
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
    budget = meta_of(task).thinking
    if budget is not None and loaded.keeps_thinking_budgets:
        fields["thinking_token_budget"] = budget.max_tokens
    return fields


def off_in(release: Release) -> dict[str, float]:
    """Values that disable the settings that an LLM with `generation_config: auto` takes from the model's file."""
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
    """Arguments that choose the next token."""
    temperature, top_p, top_k, min_p = defaults.selection(task)
    if temperature == 0:
        return {"top_k": 1}
    further = {"top_k": top_k, "min_p": min_p}
    return {"temperature": temperature, "top_p": top_p} | {name: value for name, value in further.items() if value}
