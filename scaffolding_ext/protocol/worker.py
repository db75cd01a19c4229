"""The contract of this package's workers, and of those that wrap another.

TensorRT-LLM's own `Worker` looks handlers up on the class, ends a `with` statement with a TypeError below 1.3, and has
no `on_scope_end` there. A worker on `BaseWorker` serves under every host what its instance says.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.protocol import Task, TaskStatus, Worker

if TYPE_CHECKING:
    from scaffolding_ext.protocol.standins import TaskHandler

W = TypeVar("W", bound="BaseWorker")
_TOLD = (
    "model",
    "max_seq_len",
    "tokens_per_block",
    "tokenizer_fingerprint",
    "chat_template",
    "max_num_logprobs",
    "refused",
    "server_budget",
    "unordered",
    "default_temperature",
)


class ServerBudget:
    """What is known of the thinking budget of a worker's server; whoever sees it ignored says so here.

    Attributes:
        reason: Why it is not relied on; None while it is.
    """

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason


class BaseWorker(Worker):
    """A worker whose `task_handlers` may be those of the instance.

    Attributes:
        task_handlers: What it serves: a function by the exact type of the task, called with worker and task.
        refused: Why it does not serve a task type, by the type's name.
        default_temperature: At which it draws a task without one; None where that is 0, or nobody knows.
        unordered: Why tasks that wait in it or behind it are not taken by their priority; None where they are.
    """

    refused: Mapping[str, str] = MappingProxyType({})
    unordered: str | None = None
    default_temperature: float | None = None

    def register_task_handler(self, task_cls: type[Task], handler: TaskHandler) -> None:
        """Add a handler for a task type, for this instance alone."""
        self.task_handlers = {**self.task_handlers, task_cls: handler}  # type: ignore[misc]  # upstream's is the class's

    async def run_task(self, task: Task) -> TaskStatus | None:
        """Run one task.

        Raises:
            InvalidTaskError: The task's type is refused; the message has the reason.
        """
        handler = self.task_handlers.get(type(task))
        if handler is not None:
            status: TaskStatus | None = await handler(self, task)
            return status
        name = type(task).__name__
        if name in self.refused:
            raise InvalidTaskError(f"{type(self).__name__} does not serve {name}: {self.refused[name]}")
        return TaskStatus.WORKER_NOT_SUPPORTED

    async def on_scope_end(self, scope_id: str) -> None:
        """Called when a request or a parallel branch has ended; frees what was held for it."""

    async def async_shutdown(self) -> None:
        """Free what must be freed on the event loop."""

    def __enter__(self: W) -> W:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()


class WrappingWorker(BaseWorker):
    """A worker around another: it says of itself what that one says, hands its tasks on, and is shut down with it.

    Args:
        worker: Does the work; one of upstream's will do.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        for name in _TOLD:
            if hasattr(worker, name):
                setattr(self, name, getattr(worker, name))
        self.task_handlers = dict.fromkeys(worker.task_handlers, type(self)._hand_on)  # type: ignore[misc]

    async def _hand_on(self, task: Any) -> TaskStatus | None:
        return await self.worker.run_task(task)

    async def on_scope_end(self, scope_id: str) -> None:
        """Pass it on."""
        end = getattr(self.worker, "on_scope_end", None)  # younger than 1.2
        if end is not None:
            await end(scope_id)

    def shutdown(self) -> None:
        """Shut the worker inside down."""
        self.worker.shutdown()
