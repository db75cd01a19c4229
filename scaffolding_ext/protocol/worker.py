"""The contract of this package's workers, and of those that wrap another.

TensorRT-LLM's own `Worker` looks handlers up on the class; below 1.3 it has no `on_scope_end`, and no `with`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.protocol import Task, TaskStatus, Worker

if TYPE_CHECKING:
    from scaffolding_ext.protocol.standins import TaskHandler


class WorkerTag(str, Enum):
    """The roles of workers; the values are the keys of a stack file's `workers`."""

    GENERATION = "generation"
    DRAFT = "draft"
    TARGET = "target"
    REWARD = "reward"
    COMPARE = "compare"

    def __str__(self) -> str:
        return self.value


def tag_name(tag: Any) -> str:
    return str(getattr(tag, "value", tag))


def tag_names(tags: Iterable[Any]) -> str:
    return ", ".join(sorted(map(tag_name, tags))) or "none"


def worker_key(workers: Mapping[Any, Any], tag: Any) -> Any | None:
    """The key under which the workers hold that of a tag, or None.

    Members of any enum and plain strings are one tag if their values are equal; an equal key goes first.
    """
    if tag in workers:
        return tag
    value = getattr(tag, "value", tag)
    return next((key for key in workers if getattr(key, "value", key) == value), None)


def worker_for(workers: Mapping[Any, Worker], tag: Any) -> Worker | None:
    """The worker of a tag by its `worker_key`, or None."""
    key = worker_key(workers, tag)
    return None if key is None else workers[key]


W = TypeVar("W", bound="BaseWorker")


class ServerBudget:
    """Whether a worker's server keeps thinking budgets: `reason` says why not, None while it does."""

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason


class BaseWorker(Worker):
    """A worker whose `task_handlers` may be those of the instance.

    Controllers, the host and `serve` read its attributes. Its static methods are called before a worker is built.

    Attributes:
        task_handlers: What it serves: a function by the exact type of the task, called with worker and task.
        model: The model that its prompts are written for, by a name that `Prompting.for_model` takes; None where it has
            none. A worker without this attribute says nothing: see `model_of`.
        takes_messages: Whether it sends prompts as the messages of a chat, which its server renders.
        trust_remote_code: Whether Python code that the model's tokenizer brings may be run.
        tokenizer: The model's tokenizer, if the worker has it; None: it is loaded by the model's name.
        chat_template: How the model's prompts are rendered; None if unknown.
        tokenizer_fingerprint: Equal for tokenizers that give the same ids; None if unknown.
        max_seq_len: Prompt and generated tokens of one task at most; None where it does not say.
        max_num_logprobs: Log-probabilities that it reports for a token at most; None where it does not say.
        tokens_per_block: Of its KV, whose whole blocks tasks that begin alike share; None where they share none.
        server_budget: What is known of its server's thinking budget; None where it has no server that could keep one.
        default_temperature: At which it draws a task without one; None where that is 0, or nobody knows.
        refused: Why it does not serve a task type, by the type's name.
        unordered: Why tasks that wait in it or behind it are not taken by their priority; None where they are.
    """

    model: str | None
    takes_messages: bool = False
    trust_remote_code: bool = False
    tokenizer: Any = None
    chat_template: str | None = None
    tokenizer_fingerprint: str | None = None
    max_seq_len: int | None = None
    max_num_logprobs: int | None = None
    tokens_per_block: int | None = None
    server_budget: ServerBudget | None = None
    default_temperature: float | None = None
    refused: Mapping[str, str] = MappingProxyType({})
    unordered: str | None = None

    @staticmethod
    def check_arguments(**args: Any) -> None:
        """Refuse arguments that cannot work (ConfigError), without loading anything."""

    @staticmethod
    def missing_here(args: Mapping[str, Any]) -> list[str]:
        """What this machine lacks to build the worker, a sentence each."""
        return []

    @staticmethod
    def memory_shares(args: Mapping[str, Any]) -> Mapping[int | None, float]:
        """The share of the free memory that the worker takes, by the number of the GPU; None is every GPU."""
        return {}

    @staticmethod
    def engine_needs(args: Mapping[str, Any]) -> Any:
        """What its engine must have been built for, as `EngineNeeds`; None where it has no such engine."""
        return None

    def decoded_so_far(self) -> int:
        """Tokens that its model has decoded since it was built, running tasks included; 0 where it does not say."""
        return 0

    def register_task_handler(self, task_cls: type[Task], handler: TaskHandler) -> None:
        self.task_handlers = {**self.task_handlers, task_cls: handler}  # type: ignore[misc]  # upstream's is the class's

    async def run_task(self, task: Task) -> TaskStatus | None:
        """Run one task; InvalidTaskError with the reason if its type is refused."""
        handler = self.task_handlers.get(type(task))
        if handler is not None:
            status: TaskStatus | None = await handler(self, task)
            return status
        name = type(task).__name__
        if name in self.refused:
            raise InvalidTaskError(f"{type(self).__name__} does not serve {name}: {self.refused[name]}")
        return TaskStatus.WORKER_NOT_SUPPORTED

    async def on_scope_end(self, scope_id: str) -> None: ...

    async def async_shutdown(self) -> None: ...

    def __enter__(self: W) -> W:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()


def declared(worker: Worker | None) -> BaseWorker:
    """The worker; around one of upstream's a worker that declares what that one has; for none one that says nothing."""
    if worker is None:
        return BaseWorker()
    return worker if isinstance(worker, BaseWorker) else WrappingWorker(worker)


def model_of(worker: Worker | None) -> str | None:
    """The name of a worker's model; None where it has none, or does not say."""
    name = getattr(worker, "model", None)
    return name if isinstance(name, str) else None


class WrappingWorker(BaseWorker):
    """A worker around another, which may be upstream's: it has its attributes, and passes its tasks and shutdown on."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        for name in BaseWorker.__annotations__:
            if hasattr(worker, name):
                setattr(self, name, getattr(worker, name))
        self.task_handlers = dict.fromkeys(worker.task_handlers, type(self)._hand_on)  # type: ignore[misc]

    def decoded_so_far(self) -> int:
        return declared(self.worker).decoded_so_far()

    async def _hand_on(self, task: Any) -> TaskStatus | None:
        return await self.worker.run_task(task)

    async def on_scope_end(self, scope_id: str) -> None:
        end = getattr(self.worker, "on_scope_end", None)  # younger than 1.2
        if end is not None:
            await end(scope_id)

    def shutdown(self) -> None:
        self.worker.shutdown()
