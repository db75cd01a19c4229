"""What Scaffolding's protocol lacks: token counts on tasks, and four more task types.

Plain generation stays the protocol's exact `GenerationTask` or `StreamGenerationTask`. What a worker cannot serve
natively of the types below, `lowering` may rewrite as plain generation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from scaffolding_ext.maths.kv_sharing.layer_exit import LayerExit
from scaffolding_ext.protocol import GenerationTask, Task
from scaffolding_ext.thinking import ThinkingBudget

# In a worker's `refused`, beside the names of task types:
CONTINUED_TURNS = "continued turns"  # see `set_turn_start`
LAYER_EXIT = "layer exit"  # see `VerifyTask.layer_exit`
SIMILARITY_GATE = "similarity gate"  # see `BranchTask.least_similarity`
_NOTES = "scaffolding_ext"  # key of custom_input_params
REWARD = "reward"  # key of custom_output_params under which a worker leaves the score of a RewardTask
PAUSED = "paused"  # finish reason of a stream that its worker ended because nobody had asked for more


class Purpose(str, Enum):
    """What tokens were computed for.

    `rejected` is what a rule turned down, as a draft that the target wrote anew: its price is known beforehand.
    `discarded` was decoded in vain, beyond where a decision ended it. `overhead` is what an engine computed to find out
    how to serve the request.
    """

    PROMPT = "prompt"
    CHAIN = "chain"
    PROBE = "probe"
    SCORE = "score"
    VERIFY = "verify"
    REJECTED = "rejected"
    DISCARDED = "discarded"
    OVERHEAD = "overhead"

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


class TaskNotes(NamedTuple):
    """What the package notes on a task for itself, on any class of task and under either host.

    Attributes:
        purpose: What its tokens are for; None where nobody has said.
        turn_start: Where in `input_str` the unfinished answer begins that it goes on with; None where it begins one.
        priority: Its place among those that wait for one worker: the lower, the sooner.
        is_chunk: Whether somebody goes on with the chain where its budget cuts it off.
        counts: What it has cost so far; None where its worker has recorded nothing.
        sampling_fields: Names of the sampling fields that were set, whatever their values.
        host_seed: The seed that the host gave it.
        may_run_to: Tokens that a stream may have before more is asked of it; None where nothing bounds it.
        draw: Which draw of its request it is: samples, chains and pieces, from the outermost in. A seed that is one for
            all of them becomes one of its own for each.
        thinking: The budget of thinking that its worker's server is asked to keep.
        num_suffix_tokens: Tokens of its input that ask an unfinished chain for something.
    """

    purpose: PurposeOf | None = None
    turn_start: int | None = None
    priority: float = 0.0
    is_chunk: bool = False
    counts: TokenCounts | None = None
    sampling_fields: tuple[str, ...] = ()
    host_seed: int | None = None
    may_run_to: int | None = None
    draw: tuple[int | str, ...] = ()
    thinking: ThinkingBudget | None = None
    num_suffix_tokens: int = 0


_NO_NOTES = TaskNotes()


def notes_of(task: Task) -> TaskNotes:
    """What is noted on the task."""
    params = task.custom_input_params
    notes: TaskNotes = _NO_NOTES if params is None else params.get(_NOTES, _NO_NOTES)
    return notes


def set_notes(task: Task, notes: TaskNotes) -> None:
    """Put notes on the task, in the place of those that it has; its copies keep theirs."""
    task.custom_input_params = {**(task.custom_input_params or {}), _NOTES: notes}


def set_purpose(task: Task, purpose: PurposeOf) -> None:
    """Say what the task's tokens are for; the ledger counts them under it. Without it they count as `CHAIN_START`."""
    set_notes(task, notes_of(task)._replace(purpose=purpose))


def purpose_of(task: Task) -> PurposeOf:
    """What the task's tokens are for."""
    return notes_of(task).purpose or _DEFAULT_PURPOSE.get(type(task), CHAIN_START)


def set_turn_start(task: GenerationTask, num_characters: int) -> None:
    """Say that the task goes on with an unfinished answer, and how many characters of `input_str` stand before it."""
    set_notes(task, notes_of(task)._replace(turn_start=num_characters))


def set_priority(task: Task, priority: float) -> None:
    """Say which place the task has among those that wait for one worker: the lower, the sooner. Without it, 0."""
    set_notes(task, notes_of(task)._replace(priority=priority))


def is_urgent(task: Task) -> bool:
    """Whether others wait for what the task gives (a probe, a forced answer, a score, a verdict), not for a chain."""
    return purpose_of(task).written is not Purpose.CHAIN


def let_run_to(task: Task, num_tokens: int | None) -> None:
    """Say how many tokens a stream may have before more is asked of it; the caller's wish goes before it.

    A worker that can pauses the stream there; one that cannot may end it there, with `PAUSED` as its finish reason.
    None, as without it, lets the stream run to its end.
    """
    set_notes(task, notes_of(task)._replace(may_run_to=num_tokens))


def set_token_counts(task: Task, counts: TokenCounts) -> None:
    """For workers: record what the task has cost so far (cumulative over the steps of a streaming task)."""
    set_notes(task, notes_of(task)._replace(counts=counts))


def token_counts_of(task: Task) -> TokenCounts | None:
    """What the task has cost so far: as the worker recorded it, else estimated from its token ids; None if unknown.

    The estimate, for workers that record nothing, counts every input token as prefilled and every output token as
    decoded; what a worker of upstream's says of the usage goes before the ids, which it may not have.
    """
    counts = notes_of(task).counts
    if counts is None and isinstance(task, GenerationTask):
        num_decoded = num_decoded_of(task)
        if num_decoded is not None:
            num_read = getattr(task, "usage_prompt_tokens", None)
            counts = TokenCounts(num_decoded, len(task.input_tokens or ()) if num_read is None else num_read)
    return counts


def num_decoded_of(task: GenerationTask) -> int | None:
    """Tokens of the task's output: as the worker says, else counted; None if unknown."""
    usage: int | None = getattr(task, "usage_completion_tokens", None)  # younger than 1.2
    return usage if usage is not None or task.output_tokens is None else len(task.output_tokens)


@dataclass
class ScoreTask(Task):
    """Per-token log-probabilities of a continuation given a prompt. Give both as token ids, or both as text.

    Text is tokenised whole: a token that reaches over the border is scored with the continuation, since it is what the
    model would have written there.

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

    A branch is gone on with by another task, in whose suffix stands what it has written: its KV is reused.

    A branch may have a phrasing of its own, which it reads in the place of the prefix; with `least_similarity` it reads
    the prefix after all where that seems to make no difference, and its answer is then that to the prefix's wording.

    Attributes:
        suffixes: Token ids of each branch's suffix; the branch reads `prefix_tokens` and then its suffix.
        max_tokens: Most tokens decoded in each branch.
        seeds: One a branch; None leaves them to the worker.
        branch_scores: What each branch is worth so far, in [0, 1]; None is 1 each. With `depth` it says in which order
            KV leaves the worker's memory (`maths.kv_sharing.eviction.block_score`).
        depth: Of the branches in their tree; that of the prefix is 0.
        phrasings: Token ids of each branch's own wording of the prefix; None: all have the prefix itself.
        least_similarity: Tau, in [-1, 1]: a branch with its own phrasing reads its suffix on the prefix's KV, and stays
            there where it is at least so similar. None: it is computed on its own phrasing. A worker that cannot
            compare hidden states names `SIMILARITY_GATE` among what it refuses.
        outputs: Result: the text of each branch.
        output_tokens: Result: the token ids of each branch.
        confidences: Result: mean top-1 probability over the tokens that each branch decoded (RKSC, eq. 3).
        logprobs: Result: natural-log probability of each token that each branch decoded.
        finish_reasons: Result: why each branch ended; `"length"` at `max_tokens`.
        similarities: Result: how alike the hidden states are of each branch's last token, read on the prefix's KV, and
            of the prefix's last token (RKSC, eq. 2); 1 where the phrasing is the prefix. None without a gate.
        on_prefix: Result: which branches were written on the prefix, not on another phrasing.
    """

    prefix_tokens: list[int] = field(default_factory=list)
    suffixes: list[list[int]] = field(default_factory=list)
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seeds: list[int] | None = None
    branch_scores: list[float] | None = None
    depth: int = 1
    phrasings: list[list[int]] | None = None
    least_similarity: float | None = None
    outputs: list[str] | None = None
    output_tokens: list[list[int]] | None = None
    confidences: list[float] | None = None
    logprobs: list[list[float]] | None = None
    finish_reasons: list[str | None] | None = None
    similarities: list[float] | None = None
    on_prefix: list[bool] | None = None


@dataclass
class VerifyTask(Task):
    """P(yes) for each branch: the probability of the first token of `yes` against that of `no` after a question.

    Attributes:
        branches: Token ids of each branch, ending in the question that asks for the verdict.
        yes_token: Id of the first token of the affirmative answer.
        no_token: Id of the first token of the negative answer.
        layer_exit: When a verdict may be read before the last layer; None reads the last. A worker that cannot stop
            there names `LAYER_EXIT` among what it refuses.
        depth: Of the branches in their tree; with its score it says when the KV of a branch leaves the worker's memory.
        scores: Result: P(yes) / (P(yes) + P(no)) of each branch.
        exit_layers: Result: the layer after which each verdict was read, counted from 1, where the worker says it.
    """

    branches: list[list[int]] = field(default_factory=list)
    yes_token: int = 0
    no_token: int = 0
    layer_exit: LayerExit | None = None
    depth: int = 1
    scores: list[float] | None = None
    exit_layers: list[int] | None = None


@dataclass
class CompareTask(Task):
    """Which of these answers are equal.

    Attributes:
        answers: The answers; None stands for "no answer" and equals nothing.
        classes: Result: a class number for each answer in order of first appearance, -1 for None.
        num_undetermined: Result: distinct answers that count as different from others because nothing could decide.
    """

    answers: list[str | None] = field(default_factory=list)
    classes: list[int] | None = None
    num_undetermined: int | None = None


class MeaningTask(CompareTask):
    """As `CompareTask`, of open-ended answers: which of them mean the same, however they are put."""


_DEFAULT_PURPOSE: dict[type[Any], PurposeOf] = {ScoreTask: SCORE, VerifyTask: VERIFY}
