"""The arguments of an `LLM`: its share of the GPUs, how it reads long prompts, and the environment it is loaded in."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.workers.trtllm.engine_config import EngineConfig, EngineNeeds

_DEFAULT_FRACTION = 0.9  # TensorRT-LLM's own share of the free memory
_MAX_NUM_TOKENS = 8192  # of one step; the default of every release
_environment = threading.Lock()  # held while the environment is changed for one LLM


class Share(NamedTuple):
    """What a worker takes of the GPUs.

    Attributes:
        kv_cache_fraction: Share of the memory for KV, of the memory that is free once the model is loaded; None is the
            release's default.
        devices: Numbers of the GPUs that the worker sees; None: it sees the GPUs of the process.
        enable_block_reuse: Whether requests that begin alike share KV.
    """

    kv_cache_fraction: float | None = None
    devices: tuple[int, ...] | None = None
    enable_block_reuse: bool = True

    @staticmethod
    def by_device(args: Mapping[str, Any]) -> dict[int | None, float]:
        """The share of each GPU's free memory that a `TRTLLMWorker` with these arguments takes.

        The key None stands for the GPUs of a worker that names no GPUs. A loaded `LLM` already has its memory.
        """
        if not isinstance(args.get("model", ""), str | os.PathLike):
            return {}
        fraction = args.get("kv_cache_fraction")
        return dict.fromkeys(args.get("devices") or [None], _DEFAULT_FRACTION if fraction is None else fraction)


def llm_arguments(
    engine: EngineConfig | None, needs: EngineNeeds, share: Share, llm_args: Mapping[str, Any]
) -> dict[str, Any]:
    """All arguments of the LLM except model and tokenizer.

    Raises:
        ConfigError: An argument is wrong, or the release does not take it.
    """
    arguments = dict(llm_args)
    for name in ("max_seq_len", "max_num_tokens", "max_batch_size"):
        if getattr(needs, name) is not None:
            arguments.setdefault(name, getattr(needs, name))
    if engine is not None:
        arguments.setdefault("gather_generation_logits", True)  # without this, log-probabilities are refused
    arguments["kv_cache_config"] = _kv_cache_config(share, arguments.get("kv_cache_config") or {})
    if share.devices is not None:
        arguments["env_overrides"] = {**arguments.get("env_overrides", {}), **_visible(share.devices, engine)}
    return arguments


def _visible(devices: tuple[int, ...], engine: EngineConfig | None) -> dict[str, str]:
    """The environment that shows these GPUs to the engine's processes, if the release takes an environment."""
    from tensorrt_llm.llmapi import llm_args as arguments

    kind = getattr(arguments, "TorchLlmArgs" if engine is None else "TrtLlmArgs", None)
    if "env_overrides" not in getattr(kind, "model_fields", ()):
        raise ConfigError(
            f"is {list(devices)}, but this release of TensorRT-LLM takes no env_overrides, by which the worker "
            "chooses GPUs: leave it out, and start this process with "
            f"CUDA_VISIBLE_DEVICES={','.join(map(str, devices))}",
            "devices",
        )
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, devices))}


def _kv_cache_config(share: Share, given: Any) -> Any:
    """TensorRT-LLM's `KvCacheConfig` with the share and all other given fields (dtype, host_cache_size, ...)."""
    from tensorrt_llm.llmapi import KvCacheConfig

    key = "llm_args.kv_cache_config"
    if not isinstance(given, Mapping):
        raise ConfigError(f"is {given!r}; it must be a mapping of fields, such as {{'dtype': 'fp8'}}", key)
    for name, own in (("enable_block_reuse",) * 2, ("free_gpu_memory_fraction", "kv_cache_fraction")):
        if name in given:
            raise ConfigError(f"has {name}, which the worker sets by its argument {own}: set {own} instead", key)
    ours: dict[str, Any] = {"enable_block_reuse": share.enable_block_reuse}
    if share.kv_cache_fraction is not None:
        ours["free_gpu_memory_fraction"] = share.kv_cache_fraction
    try:
        return KvCacheConfig(**given, **ours)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"is {dict(given)!r}, and the KvCacheConfig of this release refuses it: {error}", key
        ) from error


def read_in_steps(arguments: dict[str, Any], longest: int | None) -> None:
    """Have long prompts read over several steps: a chain that goes on may be longer than one step.

    Args:
        arguments: Of the LLM; chunked prefill is switched on in them where it is needed.
        longest: Tokens that a request may have; None where this is unknown.

    Raises:
        ConfigError: Chunked prefill was switched off, and requests may be longer than one step.
    """
    step_len = arguments.get("max_num_tokens") or _MAX_NUM_TOKENS
    if longest is None or longest <= step_len:
        return
    if arguments.setdefault("enable_chunked_prefill", True) is False:
        raise ConfigError(
            f"is False, but requests may have {longest} tokens and a step reads {step_len}: a longer chain would fail "
            f"when it continues. Leave it out, set max_num_tokens to {longest}, or set max_seq_len to {step_len}",
            "llm_args.enable_chunked_prefill",
        )


def readable(args: Any, engine: EngineConfig | None, wanted: int | None, longest: int | None) -> int | None:
    """Tokens that a request may have in a loaded LLM. Without chunked prefill one step must read the whole prompt.

    Raises:
        ConfigError: The caller wants more tokens.
    """
    step_len: int | None = getattr(args, "max_num_tokens", None)
    if engine is not None or step_len is None or getattr(args, "enable_chunked_prefill", False):
        return longest
    if wanted is not None and wanted > step_len:
        raise ConfigError(
            f"is {wanted}, but the LLM was loaded with max_num_tokens={step_len} and without chunked prefill: load it "
            "with enable_chunked_prefill=True",
            "max_seq_len",
        )
    return step_len if longest is None else min(longest, step_len)


@contextlib.contextmanager
def environment_kept(overrides: Mapping[str, str]) -> Iterator[None]:
    """Undo changes of an LLM to this process's environment: its own processes need them, later LLMs must not."""
    if not overrides:
        yield
        return
    with _environment:
        before = {name: os.environ.get(name) for name in overrides}
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
