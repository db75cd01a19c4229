"""What a stack needs of the engine behind one of its workers, found out without loading anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, Task, Worker
from scaffolding_ext.registry import unknown_name
from scaffolding_ext.stack.build import check_stack
from scaffolding_ext.stack.config import StackConfig
from scaffolding_ext.tasks import BranchTask, CompareTask, ScoreTask, VerifyTask
from scaffolding_ext.worker import BaseWorker
from scaffolding_ext.workers.trtllm.engine_config import EngineNeeds

_TASKS: tuple[type[Task], ...] = (
    *(GenerationTask, StreamGenerationTask),
    *(ScoreTask, BranchTask, VerifyTask, CompareTask),
)


class _Probe(BaseWorker):
    """Stands for a worker that serves every task but one."""

    def __init__(self, without: type[Task] | None = None) -> None:
        self.model = None
        self.task_handlers = {kind: _never for kind in _TASKS if kind is not without}  # type: ignore[misc]


async def _never(worker: Any, task: Any) -> None:
    raise AssertionError("a probe serves nothing")


def engine_needs(config: StackConfig, tag: str) -> EngineNeeds:
    """What the stack needs of the worker of a tag.

    Scores are needed where its controllers refuse a worker without them. A request is as long as the worker's
    `max_seq_len` says; where it says nothing, a token longer than the most that the stack generates at once.

    Raises:
        ConfigError: The stack is wrong, or has no such worker.
    """
    if tag not in config.workers:
        raise ConfigError(unknown_name("worker", tag, tuple(config.workers)), "workers")
    args = config.workers[tag].args
    longest = max(_budgets(config.model_dump()), default=None)
    return EngineNeeds(
        scores=args.get("serve_scores") is True or _needs_scores(config, tag),
        prefix_sharing=bool(args.get("enable_block_reuse", True)),
        max_seq_len=args.get("max_seq_len") or (None if longest is None else longest + 1),
        max_num_tokens=args.get("max_num_tokens"),
        max_batch_size=args.get("max_batch_size"),
        chunked_prefill=bool((args.get("llm_args") or {}).get("enable_chunked_prefill")),
    )


def _needs_scores(config: StackConfig, tag: str) -> bool:
    """Whether the stack's controllers refuse a worker of that tag for want of scores, and for nothing else."""
    controller = check_stack(config)
    workers: dict[str, Worker] = {name: _Probe() for name in config.workers}
    refusal = _refusal(controller, {**workers, tag: _Probe(without=ScoreTask)})
    return refusal is not None and refusal != _refusal(controller, workers)


def _refusal(controller: Any, workers: dict[str, Worker]) -> str | None:
    """Why a controller refuses these workers; None where it takes them, or is a foreign one that does not look."""
    try:
        getattr(controller, "bind", lambda workers: None)(workers)
    except ConfigError as error:
        return str(error)
    return None


def _budgets(value: Any) -> Iterator[int]:
    """Every `max_tokens` of a stack file, wherever it stands."""
    if isinstance(value, list):
        for item in value:
            yield from _budgets(item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if key == "max_tokens" and isinstance(item, int):
                yield item
            yield from _budgets(item)
