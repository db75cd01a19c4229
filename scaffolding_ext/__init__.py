"""Inference-time-compute controllers for TensorRT-LLM Scaffolding: the same answers for fewer tokens, with error bars.

The public names below are imported when they are first used, so that `import scaffolding_ext` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scaffolding_ext.config import StackConfig, load_config
    from scaffolding_ext.controllers.base import BaseController
    from scaffolding_ext.controllers.budget_forcing import BudgetForcingController
    from scaffolding_ext.controllers.dynasor_cot import DynasorCoTController
    from scaffolding_ext.controllers.native_generation import NativeGenerationController
    from scaffolding_ext.errors import (
        CloneError,
        ConfigError,
        DatasetError,
        EngineError,
        InvalidTaskError,
        InvalidYieldError,
        MissingDependencyError,
        NoOutputError,
        RequestCancelledError,
        RequestError,
        RequestTimeoutError,
        ScaffoldingExtError,
        ShutdownError,
        TaskError,
        UnknownNameError,
        UnknownWorkerTagError,
        UnsupportedHostError,
        WorkerError,
    )
    from scaffolding_ext.program import Ledger, Program, current_program
    from scaffolding_ext.prompting import Prompting
    from scaffolding_ext.results import Completion, ScaffoldingResult
    from scaffolding_ext.runtime import ScaffoldingLlm
    from scaffolding_ext.stack import build_stack, load_stack
    from scaffolding_ext.tasks import TokenCounts, WorkerTag
    from scaffolding_ext.workers.huggingface import HuggingFaceWorker

__version__ = "0.1.0"

__all__ = [
    "BaseController",
    "BudgetForcingController",
    "CloneError",
    "Completion",
    "ConfigError",
    "DatasetError",
    "DynasorCoTController",
    "EngineError",
    "HuggingFaceWorker",
    "InvalidTaskError",
    "InvalidYieldError",
    "Ledger",
    "MissingDependencyError",
    "NativeGenerationController",
    "NoOutputError",
    "Program",
    "Prompting",
    "RequestCancelledError",
    "RequestError",
    "RequestTimeoutError",
    "ScaffoldingExtError",
    "ScaffoldingLlm",
    "ScaffoldingResult",
    "ShutdownError",
    "StackConfig",
    "TaskError",
    "TokenCounts",
    "UnknownNameError",
    "UnknownWorkerTagError",
    "UnsupportedHostError",
    "WorkerError",
    "WorkerTag",
    "__version__",
    "build_stack",
    "current_program",
    "load_config",
    "load_stack",
]

_MODULES = {
    "BaseController": "controllers.base",
    "BudgetForcingController": "controllers.budget_forcing",
    "Completion": "results",
    "DynasorCoTController": "controllers.dynasor_cot",
    "HuggingFaceWorker": "workers.huggingface",
    "Ledger": "program",
    "NativeGenerationController": "controllers.native_generation",
    "Program": "program",
    "Prompting": "prompting",
    "ScaffoldingLlm": "runtime",
    "ScaffoldingResult": "results",
    "StackConfig": "config",
    "TokenCounts": "tasks",
    "WorkerTag": "tasks",
    "build_stack": "stack",
    "current_program": "program",
    "load_config": "config",
    "load_stack": "stack",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
    globals()[name] = value  # the next look-up does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
