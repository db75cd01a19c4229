"""What a controller knows of its workers, and what it sends them. `bind` compares the two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, NoReturn

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import GenerationTask, Task, Worker
from scaffolding_ext.protocol.meta import CONTINUED_TURNS
from scaffolding_ext.protocol.worker import ServerBudget, WorkerTag, declared


class Capabilities(NamedTuple):
    """What a controller knows of a worker.

    Attributes:
        server_budget: What is known of its server's thinking budget; None where it has no server that could keep one.
        tokens_per_block: Of its KV, whose whole blocks requests that begin alike share; None where they share none, or
            it does not say.
    """

    tasks: frozenset[type[Any]]
    context_len: int | None
    streamed_tasks: frozenset[type[Any]]
    server_budget: ServerBudget | None = None
    tokens_per_block: int | None = None

    @classmethod
    def of(cls, worker: Worker) -> Capabilities:
        """A worker's capabilities, read from the instance: a wrapping worker serves what its inner worker serves."""
        handlers = worker.task_handlers
        streamed = (task_type for task_type, handler in handlers.items() if not _asks_for_a_queue(task_type, handler))
        says = declared(worker)
        told = says.max_seq_len, frozenset(streamed), says.server_budget, says.tokens_per_block
        return cls(frozenset(handlers), *told)


def _asks_for_a_queue(task_type: type[Any], handler: Any) -> bool:
    """Whether streaming to the caller fails, because upstream's handler reads a field that its task lacks."""
    field = "streaming_output_queue"
    return field in getattr(getattr(handler, "__code__", None), "co_names", ()) and not hasattr(task_type(), field)


UNBOUND = Capabilities(frozenset({GenerationTask}), None, frozenset({GenerationTask}))


class Requests(NamedTuple):
    """What a controller sends to one worker.

    Attributes:
        required: Task types that must be served natively, because nothing can take their place.
        max_tokens: Most tokens behind the prompt that a request reads and writes; None where nobody says.
    """

    required: frozenset[type[Task]] = frozenset()
    max_tokens: int | None = None
    num_logprobs: int = 0


def joined(sent: Iterable[Mapping[str, Requests]]) -> dict[str, Requests]:
    """What several controllers send, by the name of the worker's tag."""
    found: dict[str, Requests] = {}
    for name, more in ((name, more) for each in sent for name, more in each.items()):
        known = found.get(name, Requests())
        longest = max((num for num in (known.max_tokens, more.max_tokens) if num is not None), default=None)
        num_logprobs = max(known.num_logprobs, more.num_logprobs)
        found[name] = Requests(known.required | more.required, longest, num_logprobs)
    return found


def check_worker(worker: Worker, tag: WorkerTag, sent: Requests, continues_answers: bool, controller: str) -> None:
    """Refuse a worker that cannot serve what the controller sends.

    Args:
        worker: One that does not say how many log-probabilities it reports is believed to give them.
    """
    for name in sorted(task_type.__name__ for task_type in sent.required - Capabilities.of(worker).tasks):
        refuse_worker(worker, tag, f"serve {name}", name, controller)
    most = declared(worker).max_num_logprobs
    if most is not None and most < sent.num_logprobs:
        raise ConfigError(
            f"{type(worker).__name__} reports the log-probabilities of at most {most} tokens a position, and "
            f"{sent.num_logprobs} are read: take another worker, or "
            + (
                f"top_k={most}" if most else f"for {controller} a rule or a scorer that reads none, such as consecutive"
            ),
            f"workers.{tag.value}",
        )
    if continues_answers and CONTINUED_TURNS in declared(worker).refused:
        refuse_worker(worker, tag, "go on with an unfinished answer", CONTINUED_TURNS, controller)


def refuse_worker(worker: Worker, tag: WorkerTag, what: str, name: str, controller: str) -> NoReturn:
    """Raise an error that says what a worker cannot do, and why, if the worker's `refused` has the reason."""
    why = declared(worker).refused.get(name)
    raise ConfigError(
        f"{type(worker).__name__} cannot {what}, which {controller} needs{f': {why}' if why else ''}",
        f"workers.{tag.value}",
    )
