"""Every exception that the package raises on purpose.

ScaffoldingExtError
├── ConfigError                 a stack file or an argument is wrong; names the key's path
│   └── UnknownNameError        a name that no registry knows; lists the known ones
├── MissingDependencyError      an optional package is not installed; says how to install it
├── UnsupportedHostError        the installed TensorRT-LLM cannot serve as the protocol
├── DatasetError                a dataset row is unusable; names file, line and field
├── WorkerError                 a worker could not do what a task asks
│   ├── InvalidTaskError        a field of the task is unusable; names the field
│   └── EngineError             the engine behind the worker failed or is gone
└── RequestError                one request failed; the others go on
    ├── TaskError               a task of the request failed; the worker's error is its `__cause__`
    ├── UnknownWorkerTagError   a task names a worker that the stack does not have
    ├── InvalidYieldError       a controller yielded something that is neither tasks nor a ParallelProcess
    ├── CloneError              the controller could not be cloned for the request
    ├── NoOutputError           a controller ended without an output, or a task without a result
    ├── RequestTimeoutError     the request's time-out passed (also a TimeoutError)
    ├── RequestCancelledError   the request was cancelled
    └── ShutdownError           the host was shut down first
"""

from __future__ import annotations

from typing import Any


class ScaffoldingExtError(Exception):
    """Base of every exception of this package."""


class ConfigError(ScaffoldingExtError, ValueError):
    """A stack file or an argument is wrong.

    Attributes:
        message: What is wrong, without the key.
        key: Path of the key or name of the argument; empty where there is none.
    """

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(f"{key}: {message}" if key else message)
        self.message = message
        self.key = key


class UnknownNameError(ConfigError):
    """A name that no registry knows."""


class MissingDependencyError(ScaffoldingExtError, ImportError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package} is not installed; install it with: pip install 'scaffolding-ext[{extra}]', "
            f"or in a clone of the repository: pip install '.[{extra}]'"
        )


class UnsupportedHostError(ScaffoldingExtError):
    """The installed TensorRT-LLM cannot serve as the protocol."""


class DatasetError(ScaffoldingExtError, ValueError):
    """A dataset row is unusable."""


class WorkerError(ScaffoldingExtError):
    """A worker could not do what a task asks."""


class InvalidTaskError(WorkerError, ValueError):
    """A field of the task is unusable."""


class EngineError(WorkerError, RuntimeError):
    """The engine behind the worker failed or is gone."""


class RequestError(ScaffoldingExtError):
    """One request failed."""


class TaskError(RequestError):
    """A task of the request failed.

    Attributes:
        task: The task as the worker left it.
    """

    def __init__(self, message: str, task: Any) -> None:
        super().__init__(message)
        self.task = task


class UnknownWorkerTagError(RequestError):
    """A task names a worker that the stack does not have."""


class InvalidYieldError(RequestError, TypeError):
    """A controller yielded something that is neither a list of tasks nor a ParallelProcess."""


class CloneError(RequestError):
    """The controller could not be cloned for the request."""


class NoOutputError(RequestError):
    """A controller ended without an output, or a task without a result."""


class RequestTimeoutError(RequestError, TimeoutError):
    """The request's time-out passed."""


class RequestCancelledError(RequestError):
    """The request was cancelled."""


class ShutdownError(RequestError):
    """The host was shut down before the request ended."""
