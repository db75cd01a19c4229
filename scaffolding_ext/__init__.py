"""Inference-time-compute controllers for TensorRT-LLM Scaffolding: the same answers for fewer tokens, with error bars.

The public names below are imported when they are first used, so that `import scaffolding_ext` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scaffolding_ext.completion import Completion
    from scaffolding_ext.controllers.base import BaseController
    from scaffolding_ext.controllers.best_of_n import BestOfNController
    from scaffolding_ext.controllers.budget_forcing import BudgetForcingController
    from scaffolding_ext.controllers.deepconf import DeepConfController
    from scaffolding_ext.controllers.dynasor_cot import DynasorCoTController
    from scaffolding_ext.controllers.majority_vote import MajorityVoteController
    from scaffolding_ext.controllers.native_generation import NativeGenerationController
    from scaffolding_ext.controllers.process_reward import ProcessRewardController
    from scaffolding_ext.controllers.reward import RewardController
    from scaffolding_ext.errors import (
        ArgumentTypeError,
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
        WorkerShutdownError,
    )
    from scaffolding_ext.host.llm import ScaffoldingLlm
    from scaffolding_ext.ledger import Ledger
    from scaffolding_ext.program import Program, current_program
    from scaffolding_ext.prompting import Prompting
    from scaffolding_ext.results import ScaffoldingResult, completion_of
    from scaffolding_ext.stack.build import build_stack, load_stack
    from scaffolding_ext.stack.config import StackConfig
    from scaffolding_ext.stack.load import load_config
    from scaffolding_ext.tasks import TokenCounts
    from scaffolding_ext.worker import BaseWorker, WrappingWorker
    from scaffolding_ext.worker_tags import WorkerTag
    from scaffolding_ext.workers.compare import CompareWorker
    from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker
    from scaffolding_ext.workers.openai.worker import OpenAIWorker
    from scaffolding_ext.workers.trtllm.worker import TRTLLMWorker

__version__ = "0.1.0"

__all__ = [
    "ArgumentTypeError",
    "BaseController",
    "BaseWorker",
    "BestOfNController",
    "BudgetForcingController",
    "CloneError",
    "CompareWorker",
    "Completion",
    "ConfigError",
    "DatasetError",
    "DeepConfController",
    "DynasorCoTController",
    "EngineError",
    "HuggingFaceWorker",
    "InvalidTaskError",
    "InvalidYieldError",
    "Ledger",
    "MajorityVoteController",
    "MissingDependencyError",
    "NativeGenerationController",
    "NoOutputError",
    "OpenAIWorker",
    "ProcessRewardController",
    "Program",
    "Prompting",
    "RequestCancelledError",
    "RequestError",
    "RequestTimeoutError",
    "RewardController",
    "ScaffoldingExtError",
    "ScaffoldingLlm",
    "ScaffoldingResult",
    "ShutdownError",
    "StackConfig",
    "TRTLLMWorker",
    "TaskError",
    "TokenCounts",
    "UnknownNameError",
    "UnknownWorkerTagError",
    "UnsupportedHostError",
    "WorkerError",
    "WorkerShutdownError",
    "WorkerTag",
    "WrappingWorker",
    "__version__",
    "build_stack",
    "completion_of",
    "current_program",
    "load_config",
    "load_stack",
]

_MODULES = {
    "BaseController": "controllers.base",
    "BaseWorker": "worker",
    "BestOfNController": "controllers.best_of_n",
    "BudgetForcingController": "controllers.budget_forcing",
    "CompareWorker": "workers.compare",
    "Completion": "completion",
    "DeepConfController": "controllers.deepconf",
    "DynasorCoTController": "controllers.dynasor_cot",
    "HuggingFaceWorker": "workers.huggingface.worker",
    "Ledger": "ledger",
    "MajorityVoteController": "controllers.majority_vote",
    "NativeGenerationController": "controllers.native_generation",
    "OpenAIWorker": "workers.openai.worker",
    "ProcessRewardController": "controllers.process_reward",
    "Program": "program",
    "Prompting": "prompting",
    "RewardController": "controllers.reward",
    "ScaffoldingLlm": "host.llm",
    "ScaffoldingResult": "results",
    "StackConfig": "stack.config",
    "TokenCounts": "tasks",
    "TRTLLMWorker": "workers.trtllm.worker",
    "WorkerTag": "worker_tags",
    "WrappingWorker": "worker",
    "build_stack": "stack.build",
    "completion_of": "results",
    "current_program": "program",
    "load_config": "stack.load",
    "load_stack": "stack.build",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
    globals()[name] = value  # the next look-up does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
