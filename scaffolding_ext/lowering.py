"""Rewrites tasks that a worker cannot serve natively as plain generation, and writes the results back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from scaffolding_ext.errors import NoOutputError
from scaffolding_ext.maths.kv_sharing.confidence import generation_confidence
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.tasks import CHAIN, VERIFY, BranchTask, VerifyTask, finish_reason_of, output_of, set_purpose
from scaffolding_ext.worker_tags import tag_name


def lower_branch(task: BranchTask) -> list[GenerationTask]:
    """Rewrite a BranchTask as one GenerationTask a suffix; an engine with block reuse shares the prefix by itself."""
    seeds: list[int | None] = list(task.seeds) if task.seeds else [None] * len(task.suffixes)
    lowered = []
    for suffix, seed in zip(task.suffixes, seeds, strict=True):
        generation = GenerationTask(
            worker_tag=task.worker_tag,
            input_tokens=task.prefix_tokens + suffix,
            max_tokens=task.max_tokens,
            temperature=task.temperature,
            top_p=task.top_p,
            top_k=task.top_k,
            seed=seed,
            num_logprobs=1,
        )
        set_purpose(generation, CHAIN)
        lowered.append(generation)
    return lowered


def write_back_branch(task: BranchTask, lowered: list[GenerationTask]) -> None:
    """Write the results of the lowered tasks back into the BranchTask; a branch without a token has confidence 0.

    Raises:
        NoOutputError: The worker left no output, or no log-probabilities.
    """
    task.outputs = [output_of(generation) for generation in lowered]
    task.output_tokens = [generation.output_tokens or [] for generation in lowered]
    steps = [[] if generation.output_tokens == [] else _logprobs_of(generation) for generation in lowered]
    task.confidences = [generation_confidence([math.exp(_top(step)) for step in own]) for own in steps]
    task.logprobs = [
        [step[token].logprob for token, step in zip(ids, own, strict=False)]
        for ids, own in zip(task.output_tokens, steps, strict=True)
    ]
    task.finish_reasons = [finish_reason_of(generation) for generation in lowered]


def lower_verify(task: VerifyTask) -> list[GenerationTask]:
    """Rewrite a VerifyTask as one-token generation with the log-probabilities of the likeliest tokens."""
    lowered = []
    for branch in task.branches:
        generation = GenerationTask(
            worker_tag=task.worker_tag, input_tokens=list(branch), max_tokens=1, temperature=0.0, num_logprobs=20
        )
        set_purpose(generation, VERIFY)
        lowered.append(generation)
    return lowered


def write_back_verify(task: VerifyTask, lowered: list[GenerationTask]) -> None:
    """Write P(yes) from the lowered tasks back; a verdict outside the reported tokens counts as improbable.

    Raises:
        NoOutputError: The worker left no log-probabilities.
    """
    scores = []
    for generation in lowered:
        reported = _logprobs_of(generation)[0]
        floor = min(entry.logprob for entry in reported.values())
        yes, no = (reported[token].logprob if token in reported else floor for token in (task.yes_token, task.no_token))
        scores.append(1.0 / (1.0 + math.exp(min(no - yes, 700.0))))
    task.scores = scores


def _top(step: Mapping[int, Any]) -> float:
    return float(max(entry.logprob for entry in step.values()))


def _logprobs_of(generation: GenerationTask) -> Sequence[Mapping[int, Any]]:
    """For each token that was generated, the reported tokens and their log-probabilities."""
    steps: Sequence[Mapping[int, Any]] | None = generation.logprobs
    if not steps or not all(steps):
        raise NoOutputError(
            f"the worker {tag_name(generation.worker_tag)!r} left no log-probabilities in a GenerationTask that "
            f"asks for {generation.num_logprobs}; take a worker that reports them"
        )
    return steps
