"""Every exception that the package raises on purpose, and the install command for missing extras.

```text
ScaffoldingExtError
├── ConfigError                 a stack file or an argument is wrong; names the key's path
├── MissingDependencyError      an optional package is not installed; says how to install it
├── DatasetError                a dataset row is unusable; names file, line and field
├── OutputError                 a file cannot be written (also an OSError); names the file
├── WorkerError                 a worker could not do what a task asks
│   ├── InvalidTaskError        a field of the task is unusable; names the field
│   │   └── ServerRefusalError  the server behind the worker refused the request; quotes it
│   └── EngineError             the engine behind the worker failed or is gone
│       ├── ServerBusyError     the server had no room for the request
│       ├── ServerTimeoutError  the server sent nothing, or not all, in time
│       └── ServerDownError     the server cannot be reached, or failed too often
└── RequestError                one request failed; the others continue
    ├── TaskError               a task of the request failed; the worker's error is its `__cause__`
    ├── NoOutputError           a controller ended without an output, or a task without a result
    ├── RequestTimeoutError     the request's time-out passed (also a TimeoutError)
    ├── RequestCancelledError   the request was cancelled
    └── ShutdownError           the host was shut down first
```

All of them can be pickled, so they cross processes.
"""

from __future__ import annotations

import copy
import os
import re
from typing import Any

RELEASED = False  # on a package index; a release changes this line, then `make pages` updates every page


def install_command(*extras: str) -> str:
    """The current command that installs the package with extras of setup.py."""
    named = f"[{','.join(extras)}]" if extras else ""
    return f"pip install '{'scaffolding-ext' if RELEASED else '.'}{named}'"


def how_to_install(*extras: str) -> str:
    """The install hint of an error about missing extras."""
    place = "" if RELEASED else "in a clone of the repository, "
    return f"{place}install it with: {install_command(*extras)}"


def check_process(made_in: int, what: str) -> None:
    """Raise if this is not the process in which an object was made (its `os.getpid()`)."""
    if os.getpid() != made_in:
        raise ScaffoldingExtError(
            f"this {what} was made in another process, whose threads a fork does not copy: make a new one here"
        )


def shortened(message: str) -> str:
    """Cut words of hundreds of characters in a message, so long input is not repeated in full."""
    return re.sub(r"\S{300,}", lambda word: f"{word[0][:100]}... ({len(word[0]):,} characters)", message)


class ScaffoldingExtError(Exception):
    """Base of every exception of this package."""


class ConfigError(ScaffoldingExtError, ValueError):
    """A stack file or an argument is wrong.

    Attributes:
        message: The error without the key.
        key: Path of the key or name of the argument; may be empty.
    """

    def __init__(self, message: str, key: str = "") -> None:
        message, key = shortened(message), shortened(key)
        super().__init__(f"{key}: {message}" if key else message)
        self.message = message
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.key)


class MissingDependencyError(ScaffoldingExtError, ImportError):
    """An optional package is not installed.

    Attributes:
        package: Its name; of two, with "and" between them.
        extra: The extra of this package that provides it; empty if none does.
        how: Install hint.
    """

    def __init__(self, package: str, extra: str = "", how: str = "") -> None:
        how = how or how_to_install(extra)
        super().__init__(f"{package} {'are' if ' and ' in package else 'is'} not installed; {how}")
        self.package = package
        self.extra = extra
        self.how = how

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.package, self.extra, self.how)


class DatasetError(ScaffoldingExtError, ValueError):
    """A dataset row is unusable."""


class OutputError(ScaffoldingExtError, OSError):
    """A file cannot be written."""


class WorkerError(ScaffoldingExtError):
    """A worker could not do what a task asks."""


class InvalidTaskError(WorkerError, ValueError):
    """A field of the task is unusable."""


class EngineError(WorkerError, RuntimeError):
    """The engine behind the worker failed or is gone."""


class ServerRefusalError(InvalidTaskError):
    """The server behind the worker refused the request."""


class ServerBusyError(EngineError):
    """The server had no room for the request.

    Attributes:
        retry_after: Seconds after which it asks to be sent another; None if it did not say.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.retry_after)


class ServerTimeoutError(EngineError):
    """The server sent nothing, or not all, in time."""


class ServerDownError(EngineError):
    """The server cannot be reached, broke off its answer, or has failed so often that nothing is sent to it."""


class RequestError(ScaffoldingExtError):
    """One request failed."""


class TaskError(RequestError):
    """A task of the request failed.

    Attributes:
        task: The task as the worker left it; pickling drops its live request handle.
    """

    def __init__(self, message: str, task: Any) -> None:
        super().__init__(message)
        self.task = task

    def __reduce__(self) -> tuple[Any, ...]:
        task = copy.copy(self.task)
        if hasattr(task, "request_handle"):  # of a streaming task; belongs to the engine
            task.request_handle = None
        return type(self), (str(self), task)


class NoOutputError(RequestError):
    """A controller ended without an output, or a task without a result."""


class RequestTimeoutError(RequestError, TimeoutError):
    """The request's time-out passed."""


class RequestCancelledError(RequestError):
    """The request was cancelled."""


class ShutdownError(RequestError):
    """The host was shut down before the request ended."""
