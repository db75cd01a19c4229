"""What Scaffolding's protocol lacks: worker tags, token counts on tasks, four more task types, and how to lower them.

Plain generation stays the protocol's exact `GenerationTask` or `StreamGenerationTask`. A worker that cannot serve one
of the types below natively still serves it where a `lower_*` function can rewrite it as plain generation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from scaffolding_ext.errors import NoOutputError
from scaffolding_ext.protocol import GenerationTask, Task

_COUNTS = "token_counts"  # key of customized_result_fields
_PURPOSE = "token_purpose"  # key of custom_input_params


class WorkerTag(str, Enum):
    """The roles of workers; the values are the keys of a stack file's `workers`."""

    GENERATION = "generation"
    DRAFT = "draft"
    TARGET = "target"
    REWARD = "reward"
    COMPARE = "compare"

    def __str__(self) -> str:
        return self.value


class Purpose(str, Enum):
    """What tokens were computed for."""

    PROMPT = "prompt"
    CHAIN = "chain"
    PROBE = "probe"
    SCORE = "score"
    VERIFY = "verify"
    DISCARDED = "discarded"

    def __str__(self) -> str:
        return self.value


class TokenCounts(NamedTuple):
    """Tokens by how they were had: decoded one by one, prefilled (in parallel), or reused from the KV cache."""

    decoded: int = 0
    prefilled: int = 0
    reused: int = 0

    @property
    def computed(self) -> int:
        """Tokens that the model ran on: decoded and prefilled."""
        return self.decoded + self.prefilled

    def minus(self, other: TokenCounts) -> TokenCounts:
        """Element-wise difference."""
        return TokenCounts(self[0] - other[0], self[1] - other[1], self[2] - other[2])


class PurposeOf(NamedTuple):
    """The purposes of a task's tokens: those it reads and those it writes."""

    read: Purpose
    written: Purpose


CHAIN_START = PurposeOf(Purpose.PROMPT, Purpose.CHAIN)
CHAIN = PurposeOf(Purpose.CHAIN, Purpose.CHAIN)
PROBE = PurposeOf(Purpose.PROBE, Purpose.PROBE)
SCORE = PurposeOf(Purpose.SCORE, Purpose.SCORE)
VERIFY = PurposeOf(Purpose.VERIFY, Purpose.VERIFY)


def set_purpose(task: Task, purpose: PurposeOf) -> None:
    """Say what the task's tokens are for; the ledger counts them under it. Without it they count as `CHAIN_START`."""
    if task.custom_input_params is None:
        task.custom_input_params = {}
    task.custom_input_params[_PURPOSE] = purpose


def purpose_of(task: Task) -> PurposeOf:
    """What the task's tokens are for."""
    purpose: PurposeOf = (task.custom_input_params or {}).get(_PURPOSE) or _DEFAULT_PURPOSE.get(type(task), CHAIN_START)
    return purpose


def set_token_counts(task: Task, counts: TokenCounts) -> None:
    """For workers: record what the task has cost so far (cumulative over the steps of a streaming task)."""
    if isinstance(task, GenerationTask):
        task.customized_result_fields[_COUNTS] = counts
        return
    if task.custom_output_params is None:
        task.custom_output_params = {}
    task.custom_output_params[_COUNTS] = counts


def token_counts_of(task: Task) -> TokenCounts | None:
    """What the task has cost so far: as the worker recorded it, else estimated from its token ids; None if unknown.

    The estimate, for workers that record nothing, counts every input token as prefilled and every output token as
    decoded.
    """
    if not isinstance(task, GenerationTask):
        return (task.custom_output_params or {}).get(_COUNTS)
    counts: TokenCounts | None = task.customized_result_fields.get(_COUNTS)
    if counts is None and task.output_tokens is not None:
        counts = TokenCounts(len(task.output_tokens), len(task.input_tokens or ()))
    return counts


def output_of(task: GenerationTask) -> str:
    """The text that a worker wrote into the task.

    Raises:
        NoOutputError: There is none. (Some hosts complete a request whose worker failed with None.)
    """
    if task.output_str is None:
        raise NoOutputError(
            f"the worker {task.worker_tag!s} left no output in a {type(task).__name__}; it failed silently: "
            "read its log"
        )
    return task.output_str


@dataclass
class ScoreTask(Task):
    """Per-token log-probabilities of a continuation given a prompt. Give both as token ids, or both as text.

    Attributes:
        logprobs: Result: natural-log probability of each continuation token, in order.
    """

    input_tokens: list[int] | None = None
    input_str: str | None = None
    continuation_tokens: list[int] | None = None
    continuation_str: str | None = None
    logprobs: list[float] | None = None


@dataclass
class BranchTask(Task):
    """Many suffixes generated on one prefix, whose KV they share.

    Attributes:
        suffixes: Token ids of each branch's suffix; the branch reads `prefix_tokens` and then its suffix.
        max_tokens: Most tokens decoded in each branch.
        outputs: Result: the text of each branch.
        output_tokens: Result: the token ids of each branch.
        confidences: Result: mean top-1 probability over the tokens that each branch decoded (RKSC, eq. 3).
        similarities: Result: hidden-state similarity of each branch to the first (RKSC, eq. 2), where the worker has
            it.
    """

    prefix_tokens: list[int] = field(default_factory=list)
    suffixes: list[list[int]] = field(default_factory=list)
    max_tokens: int | None = None
    temperature: float | None = None
    seeds: list[int] | None = None
    outputs: list[str] | None = None
    output_tokens: list[list[int]] | None = None
    confidences: list[float] | None = None
    similarities: list[float] | None = None


@dataclass
class VerifyTask(Task):
    """P(yes) for each branch: the probability of the first token of `yes` against that of `no` after a question.

    Attributes:
        branches: Token ids of each branch, ending in the question that asks for the verdict.
        yes_token: Id of the first token of the affirmative answer.
        no_token: Id of the first token of the negative answer.
        max_layer: Where not None, the verdict may be read after this layer already (the worker must support it).
        scores: Result: P(yes) / (P(yes) + P(no)) of each branch.
    """

    branches: list[list[int]] = field(default_factory=list)
    yes_token: int = 0
    no_token: int = 0
    max_layer: int | None = None
    scores: list[float] | None = None


@dataclass
class CompareTask(Task):
    """Which of these answers are equal.

    Attributes:
        answers: The answers; None stands for "no answer" and equals nothing.
        classes: Result: a class number for each answer in order of first appearance, -1 for None.
    """

    answers: list[str | None] = field(default_factory=list)
    classes: list[int] | None = None


_DEFAULT_PURPOSE: dict[type[Any], PurposeOf] = {ScoreTask: SCORE, VerifyTask: VERIFY}


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
            seed=seed,
            num_logprobs=1,
        )
        set_purpose(generation, CHAIN)
        lowered.append(generation)
    return lowered


def raise_branch(task: BranchTask, lowered: list[GenerationTask]) -> None:
    """Write the results of the lowered tasks back into the BranchTask."""
    task.outputs = [output_of(generation) for generation in lowered]
    task.output_tokens = [generation.output_tokens or [] for generation in lowered]
    task.confidences = [_mean_top_probability(generation) for generation in lowered]


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


def raise_verify(task: VerifyTask, lowered: list[GenerationTask]) -> None:
    """Write P(yes) from the lowered tasks back; a verdict outside the reported tokens counts as improbable."""
    scores = []
    for generation in lowered:
        reported = generation.logprobs[0] if generation.logprobs else {}
        floor = min((entry.logprob for entry in reported.values()), default=0.0)
        yes, no = (reported[token].logprob if token in reported else floor for token in (task.yes_token, task.no_token))
        scores.append(1.0 / (1.0 + math.exp(min(no - yes, 700.0))))
    task.scores = scores


def _mean_top_probability(generation: GenerationTask) -> float:
    top = [max(entry.logprob for entry in step.values()) for step in generation.logprobs or []]
    return sum(map(math.exp, top)) / len(top) if top else 0.0
