"""Branches in the generation engine: written on one prefix, and judged on their cached KV."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.protocol import Task
from scaffolding_ext.protocol.branching import BranchTask, VerifyTask, layer_weighted_similarity
from scaffolding_ext.protocol.lowering import (
    lower_branch,
    prefixes_of,
    probability_of_first,
    run_pieces,
    write_back_branch,
)
from scaffolding_ext.protocol.meta import TokenCounts, note, token_counts_of
from scaffolding_ext.request.figures import Ratio
from scaffolding_ext.request.program import publish_figures, record
from scaffolding_ext.workers.huggingface.engine_request import EngineRequest
from scaffolding_ext.workers.huggingface.request_builder import RequestBuilder
from scaffolding_ext.workers.shared.streaming import NEVER
from scaffolding_ext.workers.shared.task_reading import block_scores, number

if TYPE_CHECKING:
    from scaffolding_ext.workers.huggingface.generation_engine import GenerationEngine


async def write_branches(
    task: BranchTask,
    engine: GenerationEngine,
    builder: RequestBuilder,
    generate: Callable[..., Coroutine[Any, Any, Any]],
    by_score: bool = False,
) -> None:
    """Run one request per branch, and write the results into the task. Branches share the prefix's whole blocks.

    Args:
        generate: Serves a generation task, with further arguments of its request.
        by_score: Evict blocks by the score and the depth of their branch (RKSC, algorithm 4).
    """
    scores, num_evicted = block_scores(task), engine.metrics.num_evicted
    on_prefix = probed = None
    if task.least_similarity is not None:
        on_prefix = await _gate(task, engine, builder)
        probed = token_counts_of(task)
    lowered = lower_branch(task, on_prefix)
    prefixes = prefixes_of(task, on_prefix)
    priorities = [
        partial(_block_priority, len(prefix) // engine.pool.block_len, own) if by_score else None
        for prefix, own in zip(prefixes, scores, strict=True)
    ]
    runs = [generate(piece, priority) for piece, priority in zip(lowered, priorities, strict=True)]
    await run_pieces(task, lowered, runs, before=probed)
    write_back_branch(task, lowered)
    counts = [token_counts_of(piece) or TokenCounts() for piece in lowered]
    reused, prefilled = [each.reused for each in counts], [each.prefilled for each in counts]
    evicted = engine.metrics.num_evicted - num_evicted
    record("branch_kv", reused=reused, prefilled=prefilled, evicted_blocks=evicted)
    share = Ratio(sum(reused), sum(reused) + sum(prefilled))
    publish_figures("KV of branches", reused_tokens=share, evicted_blocks=evicted)


def _block_priority(num_shared: int, own: float, number: int) -> float:
    """Return the priority of a branch's block: 1 in the prefix, otherwise the branch's score."""
    return 1.0 if number < num_shared else own


async def _gate(task: BranchTask, engine: GenerationEngine, builder: RequestBuilder) -> list[bool]:
    """Return the branches that stay on the prefix: each suffix is read there, and its hidden states are compared.

    The read tokens stay in the cache, so a branch that stays on the prefix computes only one token to continue.
    """
    least = number("least_similarity", task.least_similarity, 0.0, least=-1.0, most=1.0)
    if task.phrasings is None:
        raise InvalidTaskError(
            f"least_similarity is {least}, but all branches of the task have the same prefix: set phrasings, or leave "
            "least_similarity out"
        )
    own = [branch for branch, phrasing in enumerate(prefixes_of(task)) if phrasing != task.prefix_tokens]
    empty = [branch for branch in own if not task.suffixes[branch]]
    if empty:
        raise InvalidTaskError(
            f"suffixes[{empty[0]}] is empty, and least_similarity compares branches at the last token of their "
            "suffixes: give each suffix a token, or leave least_similarity out"
        )
    similarities = [1.0] * len(task.suffixes)
    note(task, counts=TokenCounts())
    if own:
        read = [task.prefix_tokens, *(task.prefix_tokens + task.suffixes[branch] for branch in own)]
        requests = builder.reads(task, read)
        await run_reads(task, engine, requests)
        root, *states = [np.stack([state.numpy() for state in request.states]) for request in requests]
        for branch, similarity in zip(own, layer_weighted_similarity(states, root).tolist(), strict=True):
            similarities[branch] = similarity
    on_prefix = [similarity >= least for similarity in similarities]
    task.similarities = similarities
    record("similarity_gate", least_similarity=least, similarities=similarities, on_prefix=on_prefix)
    return on_prefix


async def verify_branches(task: VerifyTask, engine: GenerationEngine, builder: RequestBuilder) -> None:
    """Run one request per branch, which reads the logits of the two words after the branch."""
    requests = builder.verify(task)
    await run_reads(task, engine, requests)
    last = [next(reversed(request.verdicts.items())) for request in requests]
    task.scores = [probability_of_first(*verdict.choice_logits) for _, verdict in last]
    if task.layer_exit is not None:
        task.exit_layers = [layer for layer, _ in last]
    if task.every_layer:
        task.curves = [
            [(verdict.entropy, probability_of_first(*verdict.choice_logits)) for verdict in request.verdicts.values()]
            for request in requests
        ]


async def run_reads(task: Task, engine: GenerationEngine, requests: Sequence[EngineRequest]) -> None:
    """Run a task's read-only requests, either all or none; the task is charged for all of them."""
    for request in requests:
        engine.submit(request)
    try:
        for request in requests:
            await request.wait(NEVER)
            if request.error is not None:
                raise request.error
    except BaseException:
        for request in requests:
            await request.close()
        raise
    finally:
        note(task, counts=TokenCounts(*map(sum, zip(*[request.counts for request in requests], strict=True))))
