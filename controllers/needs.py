"""A controller's needs and its workers' capabilities; `bind` compares the two."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import GenerationTask, Task, Worker
from scaffolding_ext.protocol.meta import CONTINUED_TURNS
from scaffolding_ext.protocol.worker import ServerBudget, WorkerTag, declared


class Needs(NamedTuple):
    """Everything that a controller asks of its workers and takes from a request.

    Attributes:
        tags: Tags of the workers that it sends tasks to.
        tasks: Task types that the worker of a tag must serve natively, because nothing can take their place.
        max_tokens: Most tokens behind the prompt that one of its tasks reads and writes; None if unknown.
        num_logprobs: Most log-probabilities of a token that it reads.
        continues_answers: Its tasks continue unfinished answers.
        fields: Keywords of a request that it obeys: sampling fields, `thinking_budget`, `tools`, `task_type`.
    """

    tags: tuple[WorkerTag, ...] = (WorkerTag.GENERATION,)
    tasks: tuple[tuple[WorkerTag, type[Task]], ...] = ()
    max_tokens: int | None = None
    num_logprobs: int = 0
    continues_answers: bool = False
    fields: frozenset[str] = frozenset()

    def of(self, tag: WorkerTag) -> Needs:
        """The needs of one worker."""
        return self._replace(tags=(tag,), tasks=tuple(each for each in self.tasks if each[0] == tag))


def joined(needs: Iterable[Needs]) -> Needs:
    """Needs of one worker by several controllers."""
    found = list(needs)
    return Needs(
        tasks=tuple({task for each in found for task in each.tasks}),
        max_tokens=max((each.max_tokens for each in found if each.max_tokens is not None), default=None),
        num_logprobs=max(each.num_logprobs for each in found),
        continues_answers=any(each.continues_answers for each in found),
    )


class Capabilities(NamedTuple):
    """Everything that a controller knows of a worker.

    Attributes:
        server_budget: What is known of its server's thinking budget; None if it has no server that could keep one.
        tokens_per_block: Length of a block of its KV. Requests that begin alike share whole blocks. None if they share
            none, or the worker does not say.
        is_sampled: The model's own files say how it is sampled.
    """

    tasks: frozenset[type[Any]]
    context_len: int | None
    streamed_tasks: frozenset[type[Any]]
    server_budget: ServerBudget | None = None
    tokens_per_block: int | None = None
    is_sampled: bool = False

    @classmethod
    def of(cls, worker: Worker) -> Capabilities:
        """A worker's capabilities, read from the instance: a wrapping worker serves what its inner worker serves."""
        handlers = worker.task_handlers
        streamed = (task_type for task_type, handler in handlers.items() if not _asks_for_a_queue(task_type, handler))
        says = declared(worker)
        return cls(
            frozenset(handlers),
            says.max_seq_len,
            frozenset(streamed),
            says.server_budget,
            says.tokens_per_block,
            bool(says.default_temperature),
        )


def _asks_for_a_queue(task_type: type[Any], handler: Any) -> bool:
    """True if streaming to the caller fails, because upstream's handler reads a field that its task lacks."""
    field = "streaming_output_queue"
    return field in getattr(getattr(handler, "__code__", None), "co_names", ()) and not hasattr(task_type(), field)


UNBOUND = Capabilities(frozenset({GenerationTask}), None, frozenset({GenerationTask}))


def check_worker(worker: Worker, tag: WorkerTag, needs: Needs, controller: str) -> None:
    """Refuse a worker that cannot serve what the controller sends.

    Args:
        worker: If it does not say how many log-probabilities it reports, it is believed to report enough.
    """
    required = {task_type for where, task_type in needs.tasks if where == tag}
    for name in sorted(task_type.__name__ for task_type in required - Capabilities.of(worker).tasks):
        refuse_worker(worker, tag, f"serve {name}", name, controller)
    most = declared(worker).max_num_logprobs
    if most is not None and most < needs.num_logprobs:
        raise ConfigError(
            f"{type(worker).__name__} reports the log-probabilities of at most {most} tokens a position, and "
            f"{needs.num_logprobs} are read: take another worker, or "
            + (
                f"top_k={most}" if most else f"for {controller} a rule or a scorer that reads none, such as consecutive"
            ),
            f"workers.{tag.value}",
        )
    if needs.continues_answers and CONTINUED_TURNS in declared(worker).refused:
        refuse_worker(worker, tag, "go on with an unfinished answer", CONTINUED_TURNS, controller)


def refuse_worker(worker: Worker, tag: WorkerTag, what: str, name: str, controller: str) -> NoReturn:
    """Raise an error that says what a worker cannot do, and why, if the worker's `refused` has the reason."""
    why = declared(worker).refused.get(name)
    raise ConfigError(
        f"{type(worker).__name__} cannot {what}, which {controller} needs{f': {why}' if why else ''}",
        f"workers.{tag.value}",
    )
