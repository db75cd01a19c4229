"""Loads an `LLM` from an engine or a checkpoint, with its share of the GPU."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.model_files import how_to_load
from scaffolding_ext.prompts.prompting import load_tokenizer, model_folder
from scaffolding_ext.workers.shared.sampling_defaults import SamplingDefaults
from scaffolding_ext.workers.trtllm.arguments import Share, environment_kept, llm_arguments, read_in_steps, readable
from scaffolding_ext.workers.trtllm.engine_config import EngineConfig, EngineNeeds, is_engine
from scaffolding_ext.workers.trtllm.release import Release, llm_class


class LoadedLlm(NamedTuple):
    """An `LLM` and what is known about it.

    Attributes:
        llm: TensorRT-LLM's `LLM`.
        release: What the installed release takes.
        tokenizer: The model's fast tokenizer, from transformers.
        model: The name by which that tokenizer is found; None where it is unknown.
        engine: What the engine was built for; None for a checkpoint.
        max_seq_len: Prompt and generated tokens of one request; None where it is unknown.
        vocab_size: Token ids are below it.
        reuses_blocks: Whether requests that begin alike share KV.
        is_own: Whether this package loaded it.
        orders_by_priority: Whether the engine takes waiting requests by their priority.
        defaults: How the model is sampled if a task sets no temperature.
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
        """An argument that the LLM was loaded with; None if this release has no argument of that name."""
        return getattr(getattr(self.llm, "args", None), name, None)

    @property
    def tokens_per_block(self) -> int | None:
        """Of the KV that requests share; None where they share none, or an engine was built."""
        config = self.argument("kv_cache_config")
        get = config.get if isinstance(config, Mapping) else functools.partial(getattr, config)
        return get("tokens_per_block", None) if self.reuses_blocks and self.engine is None else None


def load(model: str, tokenizer: str | None, needs: EngineNeeds, share: Share, llm_args: Mapping[str, Any]) -> LoadedLlm:
    """Load a checkpoint, or an engine that meets the needs.

    Raises:
        ConfigError: The engine lacks something, the release takes no engines, or an argument is wrong.
        MissingDependencyError: TensorRT-LLM is not installed.
    """
    folder = model_folder(model)
    engine = EngineConfig.read(folder) if is_engine(folder) else None
    if engine is not None:
        engine.check(needs)
        if tokenizer is None:
            raise ConfigError(
                "is missing, and the folder of an engine holds no tokenizer: name the folder of the checkpoint",
                "tokenizer",
            )
    make = llm_class(None if engine is None else folder)
    name = tokenizer or model
    found = load_tokenizer(name)
    arguments = llm_arguments(engine, needs, share, llm_args)
    if engine is None:
        read_in_steps(arguments, needs.max_seq_len or _model_config(folder).get("max_position_embeddings"))
    with environment_kept(arguments.get("env_overrides") or {}):
        llm = make(model=folder, tokenizer=model_folder(name), **arguments)
    try:
        return LoadedLlm(
            llm,
            Release(llm),
            found,
            name,
            engine,
            _max_seq_len(llm, needs.max_seq_len, engine, folder),
            max(len(found), (_model_config(folder) if engine is None else engine._asdict()).get("vocab_size") or 0),
            share.enable_block_reuse,
            is_own=True,
            orders_by_priority=_orders_by_priority(llm),
            defaults=SamplingDefaults.of_model(folder if engine is None else model_folder(name)),
        )
    except BaseException:
        llm.shutdown()
        raise


def why_no_model(name: str) -> str | None:
    """Why a model of this name cannot be loaded here, as far as this is known without loading it."""
    try:
        how_to_load(model_folder(name), name)
    except ConfigError as error:
        return f"the model {error.message}"
    return None


def adopt(llm: Any, tokenizer: str | None, max_seq_len: int | None) -> LoadedLlm:
    """Take an `LLM` that the caller has loaded; the caller also shuts it down.

    Raises:
        ConfigError: Its tokenizer is not a fast one.
    """
    args = getattr(llm, "args", None)
    model = getattr(args, "model", None)
    found = getattr(llm.tokenizer, "tokenizer", llm.tokenizer) if tokenizer is None else load_tokenizer(tokenizer)
    if not getattr(found, "is_fast", False):
        raise ConfigError(
            "is not set, and the tokenizer of the LLM is not a fast (Rust) one: name a tokenizer that is", "tokenizer"
        )
    folder = None if model is None else str(model)
    engine = EngineConfig.read(folder) if folder is not None and is_engine(folder) else None
    name = tokenizer or (folder if engine is None else None)
    kv_cache = getattr(args, "kv_cache_config", None)
    vocab_size = _model_config(folder).get("vocab_size") if engine is None else engine.vocab_size
    return LoadedLlm(
        llm,
        Release(llm),
        found,
        name,
        engine,
        readable(args, engine, max_seq_len, _max_seq_len(llm, max_seq_len, engine, folder)),
        max(len(found), vocab_size or 0),
        bool(getattr(kv_cache, "enable_block_reuse", True)),  # every release reuses blocks by default
        is_own=False,
        orders_by_priority=_orders_by_priority(llm),
        defaults=SamplingDefaults() if name is None else SamplingDefaults.of_model(model_folder(name)),
    )


def _orders_by_priority(llm: Any) -> bool:
    config = getattr(getattr(llm, "args", None), "scheduler_config", None)
    policy = config.get("waiting_queue_policy") if isinstance(config, Mapping) else None
    policy = getattr(config, "waiting_queue_policy", policy)
    return str(getattr(policy, "value", policy)).lower() == "priority"


def _max_seq_len(llm: Any, wanted: int | None, engine: EngineConfig | None, folder: str | None) -> int | None:
    """The length that the caller gave, else the LLM's limit, else the model's own context."""
    own = getattr(getattr(llm, "args", None), "max_seq_len", None)
    built = _model_config(folder).get("max_position_embeddings") if engine is None else engine.max_seq_len
    return wanted or own or built


def _model_config(folder: str | None) -> dict[str, Any]:
    """A checkpoint's own configuration; empty if the model is not a folder on this machine."""
    path = None if folder is None else Path(folder) / "config.json"
    if path is None or not path.is_file():
        return {}
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {**config, **config.get("text_config", {})}
