"""A controller's needs and its workers' capabilities; `bind` compares the two."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import GenerationTask, RewardTask, Task, Worker
from scaffolding_ext.protocol.branching import VerifyTask
from scaffolding_ext.protocol.meta import CONTINUED_TURNS
from scaffolding_ext.protocol.worker import ServerBudget, WorkerTag, declared


class Needs(NamedTuple):
    """Requirements of a controller on its workers and requests.

    Attributes:
        tags: Tags of the workers that it sends tasks to.
        tasks: Task types that a tag's worker must serve natively, because they have no substitute.
        max_tokens: Maximum tokens after the prompt that one of its tasks reads and writes; None if unknown.
        num_logprobs: Maximum log-probabilities per token that it reads.
        continues_answers: Its tasks continue unfinished answers.
        sends_ids: It asks for verdicts, whose prompts are token ids only.
        fields: Keywords of a request that it honours: sampling fields, `thinking_budget`, `tools`, `task_type`.
    """

    tags: tuple[WorkerTag, ...] = (WorkerTag.GENERATION,)
    tasks: tuple[tuple[WorkerTag, type[Task]], ...] = ()
    max_tokens: int | None = None
    num_logprobs: int = 0
    continues_answers: bool = False
    sends_ids: bool = False
    fields: frozenset[str] = frozenset()

    def of(self, tag: WorkerTag) -> Needs:
        return self._replace(tags=(tag,), tasks=tuple(each for each in self.tasks if each[0] == tag))


def joined(needs: Iterable[Needs]) -> Needs:
    found = list(needs)
    return Needs(
        tasks=tuple({task for each in found for task in each.tasks}),
        max_tokens=max((each.max_tokens for each in found if each.max_tokens is not None), default=None),
        num_logprobs=max(each.num_logprobs for each in found),
        continues_answers=any(each.continues_answers for each in found),
        sends_ids=any(each.sends_ids for each in found),
    )


class Capabilities(NamedTuple):
    """A worker's capabilities as known to controllers.

    Attributes:
        server_budget: State of its server's thinking budgets; None if no server could keep one.
        tokens_per_block: Tokens of a KV block; requests with a common beginning share whole blocks. None if they share
            none, or it is unknown.
        is_sampled: True if the model's files set its sampling.
    """

    tasks: frozenset[type[Any]]
    context_len: int | None
    streamed_tasks: frozenset[type[Any]]
    server_budget: ServerBudget | None = None
    tokens_per_block: int | None = None
    is_sampled: bool = False

    @classmethod
    def of(cls, worker: Worker) -> Capabilities:
        """Read a worker's capabilities from the instance: a wrapping worker serves what its inner worker serves."""
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
    """Return True if streaming fails because upstream's handler reads a field that its task lacks."""
    field = "streaming_output_queue"
    return field in getattr(getattr(handler, "__code__", None), "co_names", ()) and not hasattr(task_type(), field)


UNBOUND = Capabilities(frozenset({GenerationTask}), None, frozenset({GenerationTask}))


def check_worker(worker: Worker, tag: WorkerTag, needs: Needs, controller: str) -> None:
    """Refuse a worker that cannot serve the controller's tasks; an undeclared number of log-probabilities passes."""
    required = {task_type for where, task_type in needs.tasks if where == tag}
    for name in sorted(task_type.__name__ for task_type in required - Capabilities.of(worker).tasks):
        refuse_worker(worker, tag, f"serve {name}", name, controller)
    most = declared(worker).max_num_logprobs
    if most is not None and most < needs.num_logprobs:
        raise ConfigError(
            f"{type(worker).__name__} reports log-probabilities of at most {most} tokens per position, but "
            f"{needs.num_logprobs} are read: use another worker, or "
            + (f"top_k={most}" if most else f"another rule, weight, reward or scorer of {controller}"),
            f"workers.{tag.value}",
        )
    if needs.sends_ids and _reads_only_texts(worker):
        raise ConfigError(
            f"TensorRT-LLM's own {type(worker).__name__} reads only texts, and {controller} asks for verdicts in token "
            "ids: serve its LLM by this package's worker, as in TRTLLMWorker(llm)",
            f"workers.{tag.value}",
        )
    if needs.continues_answers and CONTINUED_TURNS in declared(worker).refused:
        refuse_worker(worker, tag, "continue an unfinished answer", CONTINUED_TURNS, controller)


def _reads_only_texts(worker: Worker) -> bool:
    """True for upstream's own workers: they send only `input_str`, and serve neither verdicts nor rewards."""
    handlers = worker.task_handlers
    module = str(getattr(handlers.get(GenerationTask), "__module__", ""))
    return module.startswith("tensorrt_llm.") and not {VerifyTask, RewardTask} & handlers.keys()


def refuse_worker(worker: Worker, tag: WorkerTag, what: str, name: str, controller: str) -> NoReturn:
    """Raise ConfigError naming the worker's limitation, with the reason from its `refused`."""
    why = declared(worker).refused.get(name)
    raise ConfigError(
        f"{type(worker).__name__} cannot {what}, which {controller} needs{f': {why}' if why else ''}",
        f"workers.{tag.value}",
    )
