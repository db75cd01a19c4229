"""The fake's public names."""

from tensorrt_llm import HAS_SCOPES
from tensorrt_llm.scaffolding.controller import (
    Controller,
    MajorityVoteController,
    NativeGenerationController,
    ParallelProcess,
    TOTController,
)
from tensorrt_llm.scaffolding.result import ScaffoldingOutput, ScaffoldingResult
from tensorrt_llm.scaffolding.scaffolding_llm import ScaffoldingLlm
from tensorrt_llm.scaffolding.task import GenerationTask, RewardTask, StreamGenerationTask, Task, TaskStatus
from tensorrt_llm.scaffolding.task_collection import TaskCollection, with_task_collection
from tensorrt_llm.scaffolding.worker import TRTLLMWorker, Worker

if HAS_SCOPES:
    from tensorrt_llm.scaffolding.execution_scope import ExecutionScope, current_scope  # noqa: F401

__all__ = [
    "Controller",
    "GenerationTask",
    "MajorityVoteController",
    "NativeGenerationController",
    "ParallelProcess",
    "RewardTask",
    "ScaffoldingLlm",
    "ScaffoldingOutput",
    "ScaffoldingResult",
    "StreamGenerationTask",
    "TOTController",
    "TRTLLMWorker",
    "Task",
    "TaskCollection",
    "TaskStatus",
    "Worker",
    "with_task_collection",
]
