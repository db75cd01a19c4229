"""Inference-time-compute controllers for TensorRT-LLM Scaffolding: the same answers for fewer tokens, with error bars.

The public names below are imported when they are first used, so that `import scaffolding_ext` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers, which cannot read the table below
    from scaffolding_ext.controllers.base import BaseController as BaseController
    from scaffolding_ext.controllers.basic.best_of_n import BestOfNController as BestOfNController
    from scaffolding_ext.controllers.basic.native_generation import (
        NativeGenerationController as NativeGenerationController,
    )
    from scaffolding_ext.controllers.basic.process_reward import ProcessRewardController as ProcessRewardController
    from scaffolding_ext.controllers.budgets.budget_forcing import BudgetForcingController as BudgetForcingController
    from scaffolding_ext.controllers.budgets.queue_aware_budget import (
        QueueAwareBudgetController as QueueAwareBudgetController,
    )
    from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController as DynasorCoTController
    from scaffolding_ext.controllers.chain.dynasor_cot import DynasorGenerationController as DynasorGenerationController
    from scaffolding_ext.controllers.draft_target.conformal_draft_target import (
        ConformalDraftTargetController as ConformalDraftTargetController,
    )
    from scaffolding_ext.controllers.reward import RewardController as RewardController
    from scaffolding_ext.controllers.tree.kv_share_branching import (
        KVShareBranchingController as KVShareBranchingController,
    )
    from scaffolding_ext.controllers.tree.search import SearchController as SearchController
    from scaffolding_ext.controllers.vote.deepconf import DeepConfController as DeepConfController
    from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController as MajorityVoteController
    from scaffolding_ext.errors import ConfigError as ConfigError
    from scaffolding_ext.errors import DatasetError as DatasetError
    from scaffolding_ext.errors import EngineError as EngineError
    from scaffolding_ext.errors import InvalidTaskError as InvalidTaskError
    from scaffolding_ext.errors import MissingDependencyError as MissingDependencyError
    from scaffolding_ext.errors import NoOutputError as NoOutputError
    from scaffolding_ext.errors import RequestCancelledError as RequestCancelledError
    from scaffolding_ext.errors import RequestError as RequestError
    from scaffolding_ext.errors import RequestTimeoutError as RequestTimeoutError
    from scaffolding_ext.errors import ScaffoldingExtError as ScaffoldingExtError
    from scaffolding_ext.errors import ShutdownError as ShutdownError
    from scaffolding_ext.errors import TaskError as TaskError
    from scaffolding_ext.errors import WorkerError as WorkerError
    from scaffolding_ext.host.llm import ScaffoldingLlm as ScaffoldingLlm
    from scaffolding_ext.prompts.prompting import Prompting as Prompting
    from scaffolding_ext.protocol.meta import TokenCounts as TokenCounts
    from scaffolding_ext.protocol.worker import BaseWorker as BaseWorker
    from scaffolding_ext.protocol.worker import WorkerTag as WorkerTag
    from scaffolding_ext.protocol.worker import WrappingWorker as WrappingWorker
    from scaffolding_ext.request.ledger import Ledger as Ledger
    from scaffolding_ext.request.program import Program as Program
    from scaffolding_ext.request.program import current_program as current_program
    from scaffolding_ext.request.results import Completion as Completion
    from scaffolding_ext.request.results import ScaffoldingResult as ScaffoldingResult
    from scaffolding_ext.request.results import completion_of as completion_of
    from scaffolding_ext.stack.build import build_stack as build_stack
    from scaffolding_ext.stack.build import load_stack as load_stack
    from scaffolding_ext.stack.config import StackConfig as StackConfig
    from scaffolding_ext.stack.load import load_config as load_config
    from scaffolding_ext.workers.budgeted import BudgetedWorker as BudgetedWorker
    from scaffolding_ext.workers.compare import CompareWorker as CompareWorker
    from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker as HuggingFaceWorker
    from scaffolding_ext.workers.openai.worker import OpenAIWorker as OpenAIWorker
    from scaffolding_ext.workers.trtllm.worker import TRTLLMWorker as TRTLLMWorker

__version__ = "0.1.0"

# The public names, by the module of the package that holds each.
_NAMES = {
    "controllers.base": "BaseController",
    "controllers.basic.best_of_n": "BestOfNController",
    "controllers.budgets.budget_forcing": "BudgetForcingController",
    "controllers.draft_target.conformal_draft_target": "ConformalDraftTargetController",
    "controllers.vote.deepconf": "DeepConfController",
    "controllers.chain.dynasor_cot": "DynasorCoTController DynasorGenerationController",
    "controllers.tree.kv_share_branching": "KVShareBranchingController",
    "controllers.tree.search": "SearchController",
    "controllers.vote.majority_vote": "MajorityVoteController",
    "controllers.basic.native_generation": "NativeGenerationController",
    "controllers.basic.process_reward": "ProcessRewardController",
    "controllers.budgets.queue_aware_budget": "QueueAwareBudgetController",
    "controllers.reward": "RewardController",
    "errors": (
        "ConfigError DatasetError EngineError InvalidTaskError MissingDependencyError NoOutputError "
        "RequestCancelledError RequestError RequestTimeoutError ScaffoldingExtError ShutdownError TaskError WorkerError"
    ),
    "host.llm": "ScaffoldingLlm",
    "request.ledger": "Ledger",
    "request.program": "Program current_program",
    "prompts.prompting": "Prompting",
    "request.results": "Completion ScaffoldingResult completion_of",
    "stack.build": "build_stack load_stack",
    "stack.config": "StackConfig",
    "stack.load": "load_config",
    "protocol.meta": "TokenCounts",
    "protocol.worker": "BaseWorker WorkerTag WrappingWorker",
    "workers.budgeted": "BudgetedWorker",
    "workers.compare": "CompareWorker",
    "workers.huggingface.worker": "HuggingFaceWorker",
    "workers.openai.worker": "OpenAIWorker",
    "workers.trtllm.worker": "TRTLLMWorker",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = ["__version__", *_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value  # the next look-up does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
