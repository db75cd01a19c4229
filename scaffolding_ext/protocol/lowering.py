"""Rewrite tasks that a worker cannot serve natively as plain generation, and write the results back."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from scaffolding_ext.errors import InvalidTaskError, NoOutputError
from scaffolding_ext.protocol import GenerationTask, Task
from scaffolding_ext.protocol.branching import BranchTask, VerifyTask, generation_confidence
from scaffolding_ext.protocol.meta import CHAIN, VERIFY, TokenCounts, meta_of, note, token_counts_of
from scaffolding_ext.protocol.task_results import finish_reason_of, highest_logprobs, output_of, sampled_logprobs
from scaffolding_ext.protocol.worker import tag_name


def prefixes_of(task: BranchTask, on_prefix: Sequence[bool] | None = None) -> list[list[int]]:
    """Return each branch's prefix: its phrasing if it has one, unless `on_prefix` is True for it."""
    phrasings = [task.prefix_tokens] * len(task.suffixes) if task.phrasings is None else task.phrasings
    if len(phrasings) != len(task.suffixes):
        raise InvalidTaskError(
            f"phrasings has {len(phrasings)} prompts, and there are {len(task.suffixes)} branches: give a prompt for "
            "each branch; it may be the prefix"
        )
    if on_prefix is None:
        return phrasings
    return [task.prefix_tokens if stays else own for own, stays in zip(phrasings, on_prefix, strict=True)]


def lower_branch(task: BranchTask, on_prefix: Sequence[bool] | None = None) -> list[GenerationTask]:
    """Rewrite a BranchTask as one GenerationTask per suffix; InvalidTaskError if it has an undecided gate."""
    if on_prefix is None and task.least_similarity is not None:
        raise InvalidTaskError(
            f"least_similarity is {task.least_similarity}, but this worker gives no hidden states: leave it out. Then "
            "each branch is computed on its own phrasing"
        )
    seeds: list[int | None] = list(task.seeds) if task.seeds else [None] * len(task.suffixes)
    lowered = []
    for prefix, suffix, seed in zip(prefixes_of(task, on_prefix), task.suffixes, seeds, strict=True):
        generation = GenerationTask(
            worker_tag=task.worker_tag,
            input_tokens=prefix + suffix,
            max_tokens=task.max_tokens,
            temperature=task.temperature,
            top_p=task.top_p,
            top_k=task.top_k,
            seed=seed,
            num_logprobs=1,
            stop=task.stop,
        )
        note(generation, purpose=CHAIN)
        lowered.append(generation)
    return lowered


def write_back_branch(task: BranchTask, lowered: list[GenerationTask]) -> None:
    """Write the results of the lowered tasks back; NoOutputError if output or log-probabilities are missing."""
    task.outputs = [output_of(generation) for generation in lowered]
    task.output_tokens = [generation.output_tokens or [] for generation in lowered]
    steps = [_steps_of(generation) for generation in lowered]
    task.confidences = [generation_confidence([math.exp(_top(step)) for step in own]) for own in steps]
    try:
        task.logprobs = [sampled_logprobs(ids, own) for ids, own in zip(task.output_tokens, steps, strict=True)]
    except NoOutputError:  # some releases report only the likeliest tokens
        task.logprobs = None
    task.finish_reasons = [finish_reason_of(generation) for generation in lowered]
    read = [task.prefix_tokens + suffix for suffix in task.suffixes]
    task.on_prefix = [each.input_tokens == ids for each, ids in zip(lowered, read, strict=True)]


def lower_verify(task: VerifyTask) -> list[GenerationTask]:
    lowered = []
    for branch in task.branches:
        generation = GenerationTask(
            worker_tag=task.worker_tag, input_tokens=list(branch), max_tokens=1, temperature=0.0, num_logprobs=20
        )
        note(generation, purpose=VERIFY)
        lowered.append(generation)
    return lowered


def write_back_verify(task: VerifyTask, lowered: list[GenerationTask]) -> None:
    """Write P(yes) back; a verdict outside the reported tokens counts as the least likely of them."""
    scores = []
    for generation in lowered:
        reported = _logprobs_of(generation)[0]
        floor = highest_logprobs(reported)[-1]
        yes, no = (reported[token].logprob if token in reported else floor for token in (task.yes_token, task.no_token))
        scores.append(probability_of_first(yes, no))
    task.scores = scores


def probability_of_first(first: float, second: float) -> float:
    from scipy.special import expit  # slow: a quarter of the time to check a stack without votes

    return float(expit(first - second))


def _top(step: Mapping[int, Any]) -> float:
    return highest_logprobs(step)[0]


def _steps_of(generation: GenerationTask) -> Sequence[Mapping[int, Any]]:
    """Return the reports of a branch's tokens without later ones: a stop word may be cut only from the ids."""
    ids = generation.output_tokens
    return [] if ids == [] else _logprobs_of(generation)[: None if ids is None else len(ids)]


def _logprobs_of(generation: GenerationTask) -> Sequence[Mapping[int, Any]]:
    steps: Sequence[Mapping[int, Any]] | None = generation.logprobs
    if not steps or not all(steps):
        raise NoOutputError(
            f"the worker {tag_name(generation.worker_tag)!r} left no log-probabilities in a GenerationTask that "
            f"asks for {generation.num_logprobs}; use a worker that reports them"
        )
    return steps


async def run_pieces(
    task: Task,
    pieces: Sequence[GenerationTask],
    runs: Sequence[Coroutine[Any, Any, Any]],
    *,
    decodes: bool = True,
    before: TokenCounts | None = None,
) -> None:
    """Run the pieces of a task in parallel and sum their cost; if one fails, abort the others.

    `decodes` is False if each piece's only token comes with its prompt. `before` is the task's earlier cost.
    """
    for piece in pieces:
        piece.custom_input_params = {**(task.custom_input_params or {}), **(piece.custom_input_params or {})}
        piece.__dict__.setdefault("meta", meta_of(task))
    running = [asyncio.ensure_future(run) for run in runs]
    try:
        await asyncio.gather(*running)
    except BaseException:
        for future in running:
            future.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        raise
    finally:
        spent = [before or TokenCounts(), *(counts for piece in pieces if (counts := token_counts_of(piece)))]
        total = TokenCounts(*map(sum, zip(*spent, strict=True)))
        note(task, counts=total if decodes else total._replace(decoded=0))
