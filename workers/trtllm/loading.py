"""Loads an `LLM` from an engine or a checkpoint, with its share of the GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompting import load_tokenizer, model_folder
from scaffolding_ext.workers.trtllm.engine_config import EngineConfig, EngineNeeds, is_engine
from scaffolding_ext.workers.trtllm.release import Release, llm_class

_DEFAULT_FRACTION = 0.9  # TensorRT-LLM's own share of the free memory


class Share(NamedTuple):
    """What a worker takes of the GPUs.

    Attributes:
        kv_cache_fraction: Share of the memory that is free once the model is loaded, for KV; None is the release's own.
        devices: Numbers of the GPUs that it sees; None leaves it what the process sees.
        enable_block_reuse: Whether requests that begin alike share KV.
    """

    kv_cache_fraction: float | None = None
    devices: tuple[int, ...] | None = None
    enable_block_reuse: bool = True

    @staticmethod
    def by_device(args: Mapping[str, Any]) -> dict[int | None, float]:
        """The share of each GPU's free memory that a `TRTLLMWorker` with these arguments takes.

        None stands for the GPUs of a worker that names none. An `LLM` that is there already has its memory.
        """
        if not isinstance(args.get("model", ""), str | os.PathLike):
            return {}
        fraction = args.get("kv_cache_fraction")
        return dict.fromkeys(args.get("devices") or [None], _DEFAULT_FRACTION if fraction is None else fraction)


class LoadedLlm(NamedTuple):
    """An `LLM` and what is known of it.

    Attributes:
        llm: TensorRT-LLM's `LLM`.
        release: What the installed release takes.
        tokenizer: The model's fast tokenizer, of transformers.
        model: The name by which that tokenizer is found; None where nobody knows.
        engine: What the engine was built for; None for a checkpoint.
        max_seq_len: Prompt and generated tokens of one request; None where nobody knows.
        vocab_size: Token ids are below it.
        reuses_blocks: Whether requests that begin alike share KV.
        is_own: Whether it was loaded here.
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


def load(model: str, tokenizer: str | None, needs: EngineNeeds, share: Share, llm_args: Mapping[str, Any]) -> LoadedLlm:
    """Load a checkpoint, or an engine that has what is needed of it.

    Raises:
        ConfigError: The engine lacks something, the release takes no engines, or an argument is wrong.
        MissingDependencyError: TensorRT-LLM is not installed.
    """
    folder = model_folder(model)
    engine = EngineConfig.read(folder) if is_engine(folder) else None
    if engine is not None:
        engine.check(needs)
        if tokenizer is None:
            raise ConfigError("is missing; an engine folder holds none: name the folder of the checkpoint", "tokenizer")
    make = llm_class(None if engine is None else folder)
    name = tokenizer or model
    found = load_tokenizer(name)
    llm = make(model=folder, tokenizer=model_folder(name), **_llm_arguments(engine, needs, share, llm_args))
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
        )
    except BaseException:
        llm.shutdown()
        raise


def adopt(llm: Any, tokenizer: str | None, max_seq_len: int | None) -> LoadedLlm:
    """Take an `LLM` that the caller has loaded, and shuts down.

    Raises:
        ConfigError: Its tokenizer is not a fast one.
    """
    args = getattr(llm, "args", None)
    model = getattr(args, "model", None)
    found = getattr(llm.tokenizer, "tokenizer", llm.tokenizer) if tokenizer is None else load_tokenizer(tokenizer)
    if not getattr(found, "is_fast", False):
        raise ConfigError("the LLM's own is no fast (Rust) one; name one that is", "tokenizer")
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
        _max_seq_len(llm, max_seq_len, engine, folder),
        max(len(found), vocab_size or 0),
        bool(getattr(kv_cache, "enable_block_reuse", True)),  # reuse is every release's default
        is_own=False,
    )


def _llm_arguments(
    engine: EngineConfig | None, needs: EngineNeeds, share: Share, llm_args: Mapping[str, Any]
) -> dict[str, Any]:
    arguments = dict(llm_args)
    for name in ("max_seq_len", "max_num_tokens", "max_batch_size"):
        if getattr(needs, name) is not None:
            arguments.setdefault(name, getattr(needs, name))
    if engine is not None:
        arguments.setdefault("gather_generation_logits", True)  # without it log-probabilities are refused
    from tensorrt_llm.llmapi import KvCacheConfig

    if "kv_cache_config" in arguments:
        raise ConfigError("is set by kv_cache_fraction and enable_block_reuse", "llm_args.kv_cache_config")
    fraction = {} if share.kv_cache_fraction is None else {"free_gpu_memory_fraction": share.kv_cache_fraction}
    arguments["kv_cache_config"] = KvCacheConfig(enable_block_reuse=share.enable_block_reuse, **fraction)
    if share.devices is not None:
        arguments["env_overrides"] = _visible(share.devices, engine)
    return arguments


def _visible(devices: tuple[int, ...], engine: EngineConfig | None) -> dict[str, str]:
    """The environment that shows these GPUs to the engine's processes, where the release takes one."""
    from tensorrt_llm.llmapi import llm_args as arguments

    kind = getattr(arguments, "TorchLlmArgs" if engine is None else "TrtLlmArgs", None)
    if "env_overrides" not in getattr(kind, "model_fields", ()):
        raise ConfigError(
            f"is {list(devices)}, but this TensorRT-LLM takes no environment for its processes: start this process "
            f"with CUDA_VISIBLE_DEVICES={','.join(map(str, devices))} instead",
            "devices",
        )
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, devices))}


def _max_seq_len(llm: Any, wanted: int | None, engine: EngineConfig | None, folder: str | None) -> int | None:
    """What was asked for, or what the LLM says, or what the model was made for."""
    own = getattr(getattr(llm, "args", None), "max_seq_len", None)
    built = _model_config(folder).get("max_position_embeddings") if engine is None else engine.max_seq_len
    return wanted or own or built


def _model_config(folder: str | None) -> dict[str, Any]:
    """A checkpoint's own configuration; empty where it is no folder here."""
    path = None if folder is None else Path(folder) / "config.json"
    if path is None or not path.is_file():
        return {}
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {**config, **config.get("text_config", {})}
