"""The installed TensorRT-LLM: supported fields from its signatures."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
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
            "them): give the checkpoint from which the engine was built, as TRTLLMWorker(MODEL) or "
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

    def setting(self, name: str) -> Any:
        """Return a class of its LLM API by name, such as SamplingParams or KvCacheRetentionConfig."""
        return getattr(importlib.import_module("tensorrt_llm.llmapi"), name)
