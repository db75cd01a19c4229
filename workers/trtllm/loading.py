"""Loads an `LLM` from an engine or checkpoint with its share of the GPU, or adopts a loaded one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.model_files import how_to_load
from scaffolding_ext.prompts.tokenizers import load_tokenizer, model_folder
from scaffolding_ext.workers.shared.sampling_defaults import SamplingDefaults
from scaffolding_ext.workers.trtllm.engine_config import EngineConfig, EngineNeeds, is_engine
from scaffolding_ext.workers.trtllm.release import Release, llm_class

_DEFAULT_FRACTION = 0.9  # TensorRT-LLM's default share of the free memory
_SCORING_FRACTION = 0.8
_MAX_NUM_TOKENS = 8192  # per step; the default of every release


def memory_share(args: Mapping[str, Any]) -> float:
    """Share of the free memory that a worker with these arguments takes; a loaded `LLM` already has its own."""
    if not isinstance(args.get("model", ""), str | os.PathLike):
        return 0.0
    return kv_fraction(args.get("kv_cache_fraction"), args.get("serve_scores")) or _DEFAULT_FRACTION


def kv_fraction(given: float | None, serve_scores: bool | None) -> float | None:
    """Share for KV of the memory that is free beside the model; None is the release's default.

    By default it is less if scores may be served, because their logits need some.
    """
    return _SCORING_FRACTION if given is None and serve_scores is not False else given


class LoadedLlm(NamedTuple):
    """An `LLM` and its known properties.

    Attributes:
        tokenizer: The model's fast tokenizer, from transformers.
        model: Name of that tokenizer; None if unknown.
        engine: Build configuration of the engine; None for a checkpoint.
        max_seq_len: Prompt and generated tokens of one request; None if unknown.
        vocab_size: Exclusive upper bound of token ids.
        is_own: True if this package loaded it.
        defaults: Sampling of the model if a task sets no temperature.
    """

    llm: Any
    release: Release
    tokenizer: Any
    model: str | None
    engine: EngineConfig | None
    max_seq_len: int | None
    vocab_size: int
    reuses_blocks: bool
    is_own: bool
    orders_by_priority: bool
    defaults: SamplingDefaults

    def argument(self, name: str) -> Any:
        """An argument that the LLM was loaded with; None if this release lacks it."""
        return getattr(getattr(self.llm, "args", None), name, None)

    @property
    def keeps_thinking_budgets(self) -> bool:
        """True if the engine closes thinking at a token budget."""
        return "thinking_token_budget" in self.release.sampling_fields and bool(self.argument("reasoning_parser"))

    @property
    def why_no_logprobs(self) -> str:
        """Reason why the engine reports no log-probabilities; empty if it does."""
        if self.engine is None or self.argument("gather_generation_logits"):
            return ""
        return "its engine was loaded without gather_generation_logits: set serve_logprobs to True"

    @property
    def tokens_per_block(self) -> int | None:
        """Tokens per block of shared KV; None without sharing or for an engine."""
        known = getattr(self.argument("kv_cache_config"), "tokens_per_block", None)
        return known if self.reuses_blocks and self.engine is None else None


def load(
    model: str, tokenizer: Any, needs: EngineNeeds, fraction: float | None, llm_args: Mapping[str, Any]
) -> LoadedLlm:
    """Load a checkpoint, or an engine that meets the needs, with a share of the free memory for KV.

    Raises:
        ConfigError: The engine lacks something, the release runs no engines, or an argument is invalid.
        MissingDependencyError: TensorRT-LLM is not installed.
    """
    if not isinstance(tokenizer, str | None):
        raise ConfigError("must be a folder or a name, unless the model is a loaded LLM", "tokenizer")
    folder = model_folder(model)
    engine = EngineConfig.read(folder) if is_engine(folder) else None
    if engine is not None:
        engine.check(needs)
        if tokenizer is None:
            raise ConfigError(
                "is missing, but an engine folder holds no tokenizer: give the checkpoint's folder",
                "tokenizer",
            )
    make = llm_class(None if engine is None else folder)
    name = tokenizer or model
    found = load_tokenizer(name)
    arguments = _llm_arguments(engine, needs, fraction, llm_args)
    _read_in_steps(arguments, needs.max_seq_len, engine, folder)
    llm = make(model=folder, tokenizer=model_folder(name), **arguments)
    try:
        return _loaded(llm, found, name, engine, needs.max_seq_len, folder, needs.prefix_sharing, is_own=True)
    except BaseException:
        llm.shutdown()
        raise


def why_no_model(name: str) -> str | None:
    """Reason why a model of this name cannot be loaded here, as far as known without loading it."""
    try:
        how_to_load(model_folder(name), name)
    except ConfigError as error:
        return f"the model {error.message}"
    return None


def adopt(llm: Any, tokenizer: Any, max_seq_len: int | None) -> LoadedLlm:
    """Adopt an `LLM` that the caller has loaded and will shut down; its tokenizer may be a name or loaded, too.

    Raises:
        ConfigError: Its tokenizer is not a fast one.
    """
    args = getattr(llm, "args", None)
    model = getattr(args, "model", None)
    given = llm.tokenizer if tokenizer is None else tokenizer
    found = load_tokenizer(given) if isinstance(given, str) else getattr(given, "tokenizer", given)
    if not getattr(found, "is_fast", False):
        raise ConfigError("is not a fast (Rust) one: give a fast one", "tokenizer")
    folder = None if model is None else str(model)
    engine = EngineConfig.read(folder) if folder is not None and is_engine(folder) else None
    name = given if isinstance(given, str) else folder if engine is None else None
    kv_cache = getattr(args, "kv_cache_config", None)
    reuses_blocks = bool(getattr(kv_cache, "enable_block_reuse", True))  # every release reuses blocks by default
    return _loaded(llm, found, name, engine, max_seq_len, folder, reuses_blocks, is_own=False)


def _loaded(
    llm: Any,
    tokenizer: Any,
    name: str | None,
    engine: EngineConfig | None,
    max_seq_len: int | None,
    folder: str | None,
    reuses_blocks: bool,
    is_own: bool,
) -> LoadedLlm:
    vocab_size = _model_config(folder).get("vocab_size") if engine is None else engine.vocab_size
    source = folder if engine is None and folder is not None else name
    return LoadedLlm(
        llm,
        Release(llm),
        tokenizer,
        name,
        engine,
        _max_seq_len(llm, max_seq_len, engine, folder),
        max(len(tokenizer), vocab_size or 0),
        reuses_blocks,
        is_own,
        _orders_by_priority(llm),
        SamplingDefaults() if source is None else SamplingDefaults.of_model(model_folder(source)),
    )


def _orders_by_priority(llm: Any) -> bool:
    config = getattr(getattr(llm, "args", None), "scheduler_config", None)
    policy = getattr(config, "waiting_queue_policy", None)
    return str(getattr(policy, "value", policy)).lower() == "priority"


def _max_seq_len(llm: Any, wanted: int | None, engine: EngineConfig | None, folder: str | None) -> int | None:
    """The caller's length, else the LLM's limit, else the model's context.

    Without chunked prefill one step must read the prompt, which is all tokens of a request but one.
    """
    args = getattr(llm, "args", None)
    step_len: int | None = getattr(args, "max_num_tokens", None)
    built = _model_config(folder).get("max_position_embeddings") if engine is None else engine.max_seq_len
    longest: int | None = wanted or getattr(args, "max_seq_len", None) or built
    if engine is not None:
        step_len = min(step_len or engine.max_num_tokens, engine.max_num_tokens)
    if step_len is None or getattr(args, "enable_chunked_prefill", False):
        return longest
    if wanted is not None and wanted > step_len + 1:
        raise ConfigError(
            f"is {wanted}, but the LLM was loaded with max_num_tokens={step_len} and without chunked prefill: load it "
            "with enable_chunked_prefill=True",
            "max_seq_len",
        )
    return step_len + 1 if longest is None else min(longest, step_len + 1)


def _model_config(folder: str | None) -> dict[str, Any]:
    """A checkpoint's configuration; empty if the model is not a local folder."""
    path = None if folder is None else Path(folder) / "config.json"
    if path is None or not path.is_file():
        return {}
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {**config, **config.get("text_config", {})}


def _llm_arguments(
    engine: EngineConfig | None, needs: EngineNeeds, fraction: float | None, llm_args: Mapping[str, Any]
) -> dict[str, Any]:
    """All arguments of the LLM except model and tokenizer."""
    arguments = dict(llm_args)
    for name in ("max_seq_len", "max_num_tokens", "max_batch_size"):
        if getattr(needs, name) is not None:
            arguments.setdefault(name, getattr(needs, name))
    if engine is not None and needs.logprobs:
        arguments.setdefault("gather_generation_logits", True)  # otherwise log-probabilities are refused
    given = arguments.get("kv_cache_config") or {}
    arguments["kv_cache_config"] = _kv_cache_config(needs.prefix_sharing, fraction, given)
    return arguments


def _kv_cache_config(reuses_blocks: bool, fraction: float | None, given: Any) -> Any:
    """TensorRT-LLM's `KvCacheConfig` with all other given fields (dtype, host_cache_size, ...)."""
    from tensorrt_llm.llmapi import KvCacheConfig

    key = "llm_args.kv_cache_config"
    if not isinstance(given, Mapping):
        raise ConfigError(f"is {given!r}; it must be a mapping of fields, such as {{'dtype': 'fp8'}}", key)
    for name, own in (("enable_block_reuse",) * 2, ("free_gpu_memory_fraction", "kv_cache_fraction")):
        if name in given:
            raise ConfigError(f"has {name}, which the worker sets from its argument {own}: set {own} instead", key)
    ours: dict[str, Any] = {"enable_block_reuse": reuses_blocks}
    if fraction is not None:
        ours["free_gpu_memory_fraction"] = fraction
    try:
        return KvCacheConfig(**given, **ours)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"is {dict(given)!r}, but the KvCacheConfig of this release refuses it: {error}", key
        ) from error


def _read_in_steps(
    arguments: dict[str, Any], max_seq_len: int | None, engine: EngineConfig | None, folder: str
) -> None:
    """Enable chunked prefill unless every request fits into one step, since chains keep growing."""
    if engine is not None and not engine.reads_in_steps(None):
        return  # `EngineConfig.shortfalls` has compared its steps with the needs
    step_len = arguments.get("max_num_tokens") or (_MAX_NUM_TOKENS if engine is None else engine.max_num_tokens)
    built = _model_config(folder).get("max_position_embeddings") if engine is None else engine.max_seq_len
    longest = max_seq_len or built
    if longest is not None and longest <= step_len:
        return
    if arguments.setdefault("enable_chunked_prefill", True) is False and longest is not None:
        raise ConfigError(
            f"is False, but requests may have {longest} tokens and a step reads {step_len}: a longer chain would fail "
            f"when it continues. Leave it out, set max_num_tokens to {longest}, or set max_seq_len to {step_len}",
            "llm_args.enable_chunked_prefill",
        )
