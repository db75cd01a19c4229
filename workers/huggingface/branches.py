"""Branches in the generation engine: written on one prefix, and judged on the KV that they left there."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from scaffolding_ext.lowering import lower_branch, write_back_branch
from scaffolding_ext.program import record
from scaffolding_ext.protocol import Task
from scaffolding_ext.tasks import BranchTask, TokenCounts, VerifyTask, set_token_counts, token_counts_of
from scaffolding_ext.workers.branch_blocks import block_scores
from scaffolding_ext.workers.huggingface.request_builder import RequestBuilder, probability_of_first
from scaffolding_ext.workers.huggingface.waiter import Waiter
from scaffolding_ext.workers.pieces import run_pieces
from scaffolding_ext.workers.streaming import NEVER

if TYPE_CHECKING:
    from scaffolding_ext.workers.huggingface.engine_request import EngineRequest
    from scaffolding_ext.workers.huggingface.generation_engine import GenerationEngine


async def write_branches(
    task: BranchTask, engine: GenerationEngine, tokens_per_block: int, generate: Callable[..., Coroutine[Any, Any, Any]]
) -> None:
    """A request a branch: they hold the blocks of the prefix together, and copy what they share of the next one.

    Args:
        task: Gets its results.
        engine: Serves the requests.
        tokens_per_block: Of the engine.
        generate: Serves a generation task, with what else its request is told.
    """
    scores, num_evicted = block_scores(task), engine.metrics.num_evicted
    lowered = lower_branch(task)
    num_shared = len(task.prefix_tokens) // tokens_per_block
    worth = [lambda number, own=own: 1.0 if number < num_shared else own for own in scores]
    await run_pieces(task, lowered, [generate(piece, worth=own) for piece, own in zip(lowered, worth, strict=True)])
    write_back_branch(task, lowered)
    counts = [token_counts_of(piece) or TokenCounts() for piece in lowered]
    record(
        "branch_kv",
        reused=[each.reused for each in counts],
        prefilled=[each.prefilled for each in counts],
        evicted_blocks=engine.metrics.num_evicted - num_evicted,
    )


async def verify_branches(task: VerifyTask, engine: GenerationEngine, builder: RequestBuilder) -> None:
    """A request a branch, which reads the two words' logits behind it.

    Args:
        task: Gets its results.
        engine: Serves the requests.
        builder: Makes them.
    """
    waiters = [Waiter() for _ in task.branches]
    requests = builder.verify(task, [waiter.notify for waiter in waiters])
    await _read(task, engine, requests, waiters)
    task.scores = [probability_of_first(request.choice_logits) for request in requests]
    if task.layer_exit is not None:
        task.exit_layers = [request.exit_layer or 0 for request in requests]


async def _read(
    task: Task, engine: GenerationEngine, requests: Sequence[EngineRequest], waiters: Sequence[Waiter]
) -> None:
    """Run a task's requests that only read, together or not at all; what all have cost is the task's."""
    for request in requests:
        engine.submit(request)
    try:
        for request, waiter in zip(requests, waiters, strict=True):
            await waiter.wait(request, NEVER)
            if request.error is not None:
                raise request.error
    except BaseException:
        for request in requests:
            engine.cancel(request)
        raise
    finally:
        set_token_counts(task, TokenCounts(*map(sum, zip(*[request.counts for request in requests], strict=True))))
