"""The fake's public names."""

from tensorrt_llm.scaffolding.controller import Controller, MajorityVoteController, ParallelProcess
from tensorrt_llm.scaffolding.execution_scope import ExecutionScope, current_scope
from tensorrt_llm.scaffolding.result import ScaffoldingOutput, ScaffoldingResult
from tensorrt_llm.scaffolding.scaffolding_llm import ScaffoldingLlm
from tensorrt_llm.scaffolding.task import GenerationTask, RewardTask, StreamGenerationTask, Task, TaskStatus
from tensorrt_llm.scaffolding.task_collection import TaskCollection, with_task_collection
from tensorrt_llm.scaffolding.worker import Worker

__all__ = [
    "Controller",
    "ExecutionScope",
    "GenerationTask",
    "MajorityVoteController",
    "ParallelProcess",
    "RewardTask",
    "ScaffoldingLlm",
    "ScaffoldingOutput",
    "ScaffoldingResult",
    "StreamGenerationTask",
    "Task",
    "TaskCollection",
    "TaskStatus",
    "Worker",
    "current_scope",
    "with_task_collection",
]
