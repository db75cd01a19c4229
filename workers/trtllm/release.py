"""The installed TensorRT-LLM: supported fields from its signatures, sampler behaviour from test requests."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from types import ModuleType
from typing import Any

from scaffolding_ext.errors import ConfigError, MissingDependencyError
from scaffolding_ext.protocol import import_tensorrt_llm

_INSTALL = "see https://nvidia.github.io/TensorRT-LLM/installation: pip cannot check for its GPU and driver"


def tensorrt_llm() -> ModuleType:
    """Import the package.

    Raises:
        MissingDependencyError: It is not installed, or cannot run on this machine.
    """
    try:
        return import_tensorrt_llm()
    except ImportError as error:
        if importlib.util.find_spec("tensorrt_llm") is None:
            raise MissingDependencyError(
                "tensorrt_llm", how=f"install it as NVIDIA documents it ({_INSTALL})"
            ) from error
        how = f"it is installed but cannot be imported ({error}); it needs a GPU with its driver ({_INSTALL})"
        raise MissingDependencyError("tensorrt_llm", how=how) from error


def why_not_installed() -> list[str]:
    """Reason why this machine cannot import TensorRT-LLM, as far as known without importing it; empty if it can."""
    found = importlib.util.find_spec("tensorrt_llm") is not None
    return [] if found else [f"tensorrt_llm is not installed ({_INSTALL})"]


def llm_class(engine_folder: str | None) -> Any:
    """Class that loads an engine of `trtllm-build`, or a checkpoint if `engine_folder` is None.

    Raises:
        ConfigError: This release no longer has engines.
    """
    package = tensorrt_llm()
    if engine_folder is None:
        return package.LLM
    try:
        return importlib.import_module("tensorrt_llm._tensorrt_engine").LLM
    except ImportError as error:
        version = getattr(package, "__version__", "of this machine")
        raise ConfigError(
            f"is the engine {engine_folder}, but TensorRT-LLM {version} no longer runs TensorRT engines (1.3 removed "
            "them): give the checkpoint from which the engine was built, as TRTLLMWorker.from_checkpoint(MODEL) or "
            "`model: MODEL`, or install a tensorrt_llm below 1.3",
            "model",
        ) from error


class Release:
    """Features of the installed release.

    Attributes:
        sampling_fields: Fields of its `SamplingParams`.
        request_keywords: Keywords of its `LLM.generate_async`.
    """

    def __init__(self, llm: Any) -> None:
        self._package = tensorrt_llm()
        self.sampling_fields = frozenset(inspect.signature(self._package.SamplingParams).parameters)
        self.request_keywords = frozenset(inspect.signature(llm.generate_async).parameters)

    @property
    def version(self) -> str:
        """Its version, for messages."""
        return str(getattr(self._package, "__version__", "of unknown version"))

    @property
    def crashes_on_abort(self) -> bool:
        """True if aborting a stream crashes an engine that gathers the logits of generated tokens.

        Reported for 1.1.0 and 1.2.0rc7 (#10810); no fix is named.
        """
        return re.match(r"1\.1\b|1\.2\.0rc", self.version) is not None

    def sampling_params(self, **fields: Any) -> Any:
        """Construct its `SamplingParams`."""
        return self._package.SamplingParams(**fields)

    def setting(self, name: str) -> Any:
        """Return a class of its LLM API by name, such as KvCacheConfig or KvCacheRetentionConfig."""
        return getattr(importlib.import_module("tensorrt_llm.llmapi"), name)


Decode = Callable[[Mapping[str, Any]], Awaitable[list[int]]]
"""Decodes a short prompt with these fields of `SamplingParams` and returns the token ids."""

PENALTIES = ("frequency_penalty", "presence_penalty")
_NUM_TOKENS = 6
_STRONG = 100.0  # larger than any difference of two logits


class SamplerWarning(UserWarning):
    """The installed release does not honour sampling parameters."""


async def honours_penalties(decode: Decode) -> bool:
    """True if a high frequency penalty prevents repeats and a negative one forces them."""
    greedy = {"max_tokens": _NUM_TOKENS, "top_k": 1, "ignore_eos": True}
    none_twice, all_alike = await asyncio.gather(
        decode({**greedy, "frequency_penalty": _STRONG}), decode({**greedy, "frequency_penalty": -_STRONG})
    )
    return len(set(none_twice)) == len(none_twice) and len(set(all_alike)) == 1


async def keeps_seeds_apart(decode: Decode) -> bool:
    """True if a request draws the same tokens by itself and beside a request with another seed."""
    drawn = {"max_tokens": _NUM_TOKENS, "temperature": 5.0, "top_p": 1.0, "ignore_eos": True}
    alone = await decode({**drawn, "seed": 2})
    _, beside = await asyncio.gather(decode({**drawn, "seed": 1}), decode({**drawn, "seed": 2}))
    return alone == beside
