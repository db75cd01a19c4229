"""Base classes of this package's workers, and of those that wrap another worker.

TensorRT-LLM's `Worker` looks handlers up on the class; below 1.3 it has no `on_scope_end`, and no `with`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.protocol import Task, TaskStatus, Worker

if TYPE_CHECKING:
    from scaffolding_ext.protocol.standins import TaskHandler


class WorkerTag(str, Enum):
    """Roles of workers; the values are the keys of a stack file's `workers`."""

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
    """Return the mapping's key for a tag, or None.

    Members of any enum and plain strings are the same tag if their values are equal; an equal key takes precedence.
    """
    if tag in workers:
        return tag
    value = getattr(tag, "value", tag)
    return next((key for key in workers if getattr(key, "value", key) == value), None)


def workers_within(workers: Iterable[Worker]) -> Iterator[Worker]:
    """Yield each worker, and those inside it."""
    found, seen = list(workers), set[int]()
    while found:
        worker = found.pop()
        if id(worker) not in seen:
            seen.add(id(worker))
            yield worker
            found += [value for value in vars(worker).values() if isinstance(value, Worker)]


def num_written_by(workers: Iterable[Worker]) -> int:
    """Return the tokens so far, those of unfinished requests included."""
    return sum(getattr(worker, "num_written", 0) for worker in workers_within(workers))


def worker_for(workers: Mapping[Any, Worker], tag: Any) -> Worker | None:
    key = worker_key(workers, tag)
    return None if key is None else workers[key]


W = TypeVar("W", bound="BaseWorker")


class ServerBudget:
    """State of a server's thinking budgets: `reason` tells why it does not keep them, None while it does."""

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason


class BaseWorker(Worker):
    """A worker whose `task_handlers` may be set per instance.

    Controllers, the host and `serve` read its attributes. Its static methods are called before a worker is built.

    Attributes:
        task_handlers: Handlers by the exact type of the task, called with worker and task.
        model: Model that its prompts are written for, by a name that `Prompting.for_model` takes; None if it has none.
            Without this attribute the model is unknown: see `model_of`.
        takes_messages: It sends prompts as chat messages, which its server renders.
        separates_thinking: Its chat server takes thinking apart from the answer; texts then have the marks of a family
            around it.
        trust_remote_code: Allow Python code that comes with the model's tokenizer.
        tokenizer: The model's tokenizer, if the worker has it; None loads it by the model's name.
        chat_template: Template of the model's prompts; None if unknown.
        tokenizer_fingerprint: Equal for tokenizers that give the same ids; None if unknown.
        max_seq_len: Maximum of prompt and generated tokens of a task; None if unknown.
        max_num_logprobs: Maximum log-probabilities reported per token; None if unknown.
        tokens_per_block: Tokens of a KV block; tasks with a common beginning share whole blocks. None if they share
            none.
        server_budget: State of its server's thinking budgets; None if no server could keep one.
        guides_json: True if it keeps an answer to JSON, or to a schema (`guided_decoding` in `custom_input_params`).
        default_temperature: Temperature of a task that sets none; None if that is 0 or unknown.
        refused: Reasons for not serving task types, by type name.
        unordered: Reason that waiting tasks are not served by priority; None if they are.
    """

    model: str | None
    takes_messages: bool = False
    separates_thinking: bool = False
    trust_remote_code: bool = False
    tokenizer: Any = None
    chat_template: str | None = None
    tokenizer_fingerprint: str | None = None
    max_seq_len: int | None = None
    max_num_logprobs: int | None = None
    tokens_per_block: int | None = None
    server_budget: ServerBudget | None = None
    guides_json: bool = False
    default_temperature: float | None = None
    refused: Mapping[str, str] = MappingProxyType({})
    unordered: str | None = None

    @staticmethod
    def check_arguments(**args: Any) -> None:
        """Refuse arguments that cannot work (ConfigError), without loading anything."""

    @staticmethod
    def missing_here(args: Mapping[str, Any]) -> list[str]:
        """List what this machine lacks to build the worker, one sentence each."""
        return []

    @staticmethod
    def memory_share(args: Mapping[str, Any]) -> float:
        """Return the worker's share of the GPU's free memory."""
        return 0.0

    @staticmethod
    def engine_needs(args: Mapping[str, Any]) -> Any:
        """Return its engine's required build options, as `EngineNeeds`; None without such an engine."""
        return None

    def register_task_handler(self, task_cls: type[Task], handler: TaskHandler) -> None:
        self.task_handlers = {**self.task_handlers, task_cls: handler}  # type: ignore[misc]  # upstream sets it on the class

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
    """Return a worker with all attributes: itself, a wrapper around upstream's, or the defaults for None."""
    if worker is None:
        return BaseWorker()
    return worker if isinstance(worker, BaseWorker) else WrappingWorker(worker)


def model_of(worker: Worker | None) -> str | None:
    name = getattr(worker, "model", None)
    return name if isinstance(name, str) else None


class WrappingWorker(BaseWorker):
    """A worker around another, possibly upstream's: it copies its attributes and forwards tasks and shutdown."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        for name in BaseWorker.__annotations__:
            if hasattr(worker, name):
                setattr(self, name, getattr(worker, name))
        self.task_handlers = dict.fromkeys(worker.task_handlers, type(self)._hand_on)  # type: ignore[misc]

    async def _hand_on(self, task: Any) -> TaskStatus | None:
        return await self.worker.run_task(task)

    async def on_scope_end(self, scope_id: str) -> None:
        end = getattr(self.worker, "on_scope_end", None)  # newer than 1.2
        if end is not None:
            await end(scope_id)

    def shutdown(self) -> None:
        self.worker.shutdown()
