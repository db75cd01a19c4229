"""Protocol of controllers, workers and host: TensorRT-LLM's classes if they import, else stand-ins.

`SCAFFOLDING_EXT_STANDINS=1` in the environment forces the stand-ins. `UPSTREAM` is True if upstream's classes are used,
and `WHY_STANDINS` gives the reason for ignoring an installed TensorRT-LLM.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from scaffolding_ext.protocol import standins
from scaffolding_ext.protocol.standins import ControllerGenerator

_REQUIRED_FIELDS = ("output_str", "output_tokens", "customized_result_fields", "streaming_output_flag")


def import_tensorrt_llm(name: str = "tensorrt_llm") -> ModuleType:
    """Import a module of TensorRT-LLM; its output goes to stderr, and its warnings are ignored."""
    with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def _import_upstream() -> tuple[Any | None, str]:
    """Return `tensorrt_llm.scaffolding` if usable; else None, and the reason if it is installed."""
    if os.environ.get("SCAFFOLDING_EXT_STANDINS", "") not in ("", "0") or not importlib.util.find_spec("tensorrt_llm"):
        return None, ""
    try:
        module = import_tensorrt_llm("tensorrt_llm.scaffolding")
        fields = {field.name for field in dataclasses.fields(module.GenerationTask)}
    except ModuleNotFoundError as error:  # 1.2's scaffolding imports mcp without requiring it
        return None, f"it needs the module {error.name!r}, which is not installed: pip install {error.name}"
    except Exception as error:  # without a driver its import fails in many ways
        return None, str(error)
    missing = [name for name in _REQUIRED_FIELDS if name not in fields]
    if missing:
        return None, f"its GenerationTask has no field {', '.join(missing)}: that is a release below 1.2"
    return module, ""


_upstream, WHY_STANDINS = (None, "") if TYPE_CHECKING else _import_upstream()
UPSTREAM: bool = _upstream is not None
if WHY_STANDINS:
    warnings.warn(
        f"tensorrt_llm is installed, but its Scaffolding cannot be used ({WHY_STANDINS}); the package uses stand-ins "
        "for its protocol",
        RuntimeWarning,
        stacklevel=2,
    )

if TYPE_CHECKING or _upstream is None:
    from scaffolding_ext.protocol.standins import (
        AssistantMessage,
        ChatTask,
        Controller,
        DropKVCacheTask,
        ExecutionScope,
        GenerationTask,
        MCPCallTask,
        OpenAIToolDescription,
        ParallelProcess,
        RewardTask,
        RoleMessage,
        ScaffoldingOutput,
        StreamGenerationTask,
        SystemMessage,
        Task,
        TaskCollection,
        TaskStatus,
        TokenizeTask,
        ToolMessage,
        UserMessage,
        Worker,
        current_scope,
        with_task_collection,
    )
else:
    Controller = _upstream.Controller
    GenerationTask = _upstream.GenerationTask
    ParallelProcess = _upstream.ParallelProcess
    RewardTask = _upstream.RewardTask
    StreamGenerationTask = _upstream.StreamGenerationTask
    Task = _upstream.Task
    TaskCollection = _upstream.TaskCollection
    TaskStatus = _upstream.TaskStatus
    Worker = _upstream.Worker
    with_task_collection = _upstream.with_task_collection
    ScaffoldingOutput = importlib.import_module("tensorrt_llm.scaffolding.result").ScaffoldingOutput
    _tasks = importlib.import_module("tensorrt_llm.scaffolding.task")
    # Only in some releases.
    AssistantMessage = getattr(_tasks, "AssistantMessage", standins.AssistantMessage)
    ChatTask = getattr(_tasks, "ChatTask", standins.ChatTask)
    DropKVCacheTask = getattr(_tasks, "DropKVCacheTask", standins.DropKVCacheTask)
    MCPCallTask = getattr(_tasks, "MCPCallTask", standins.MCPCallTask)
    OpenAIToolDescription = getattr(_tasks, "OpenAIToolDescription", standins.OpenAIToolDescription)
    RoleMessage = getattr(_tasks, "RoleMessage", standins.RoleMessage)
    SystemMessage = getattr(_tasks, "SystemMessage", standins.SystemMessage)
    TokenizeTask = getattr(_tasks, "TokenizeTask", standins.TokenizeTask)
    ToolMessage = getattr(_tasks, "ToolMessage", standins.ToolMessage)
    UserMessage = getattr(_tasks, "UserMessage", standins.UserMessage)
    ExecutionScope = getattr(_upstream, "ExecutionScope", standins.ExecutionScope)
    current_scope = getattr(_upstream, "current_scope", standins.current_scope)


def close_generator(generator: Iterator[Any]) -> None:
    """Close a controller's generator; plain iterators, such as upstream's task collections, cannot be closed."""
    close = getattr(generator, "close", None)
    if close is not None:
        close()


__all__ = [
    "UPSTREAM",
    "WHY_STANDINS",
    "AssistantMessage",
    "ChatTask",
    "Controller",
    "ControllerGenerator",
    "DropKVCacheTask",
    "ExecutionScope",
    "GenerationTask",
    "MCPCallTask",
    "OpenAIToolDescription",
    "ParallelProcess",
    "RewardTask",
    "RoleMessage",
    "ScaffoldingOutput",
    "StreamGenerationTask",
    "SystemMessage",
    "Task",
    "TaskCollection",
    "TaskStatus",
    "TokenizeTask",
    "ToolMessage",
    "UserMessage",
    "Worker",
    "close_generator",
    "current_scope",
    "import_tensorrt_llm",
    "with_task_collection",
]
