"""Notes on a task, whatever its class and under either host: its purpose, its cost, its place in a waiting line."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, NamedTuple

from scaffolding_ext.protocol import GenerationTask, Task
from scaffolding_ext.protocol.branching import VerifyTask
from scaffolding_ext.protocol.tasks import ScoreTask

CONTINUED_TURNS = "continued turns"  # in a worker's `refused`: see `set_turn_start`
PAUSED = "paused"  # finish reason of a stream that its worker ended because nobody had asked for more
_NOTES = "scaffolding_ext"  # key of custom_input_params


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


class ThinkingBudget(NamedTuple):
    """A thinking budget that a server is asked to keep in a generation.

    Attributes:
        max_tokens: Tokens of thinking, after which it is to be closed.
        open: What opens thinking.
        close: What closes it.
        is_open: Whether the prompt ends in `open`, and white space perhaps.
    """

    max_tokens: int
    open: str
    close: str
    is_open: bool


class TaskNotes(NamedTuple):
    """The notes of this package on a task.

    Attributes:
        purpose: What its tokens are for; None where nobody has said.
        turn_start: Where in `input_str` the unfinished answer begins that it goes on with; None where it begins one.
        priority: Its place among the tasks that wait for one worker: the lowest is served first.
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
_DEFAULT_PURPOSE: dict[type[Any], PurposeOf] = {ScoreTask: SCORE, VerifyTask: VERIFY}


def notes_of(task: Task) -> TaskNotes:
    """What is noted on the task."""
    params = task.custom_input_params
    notes: TaskNotes = _NO_NOTES if params is None else params.get(_NOTES, _NO_NOTES)
    return notes


def set_notes(task: Task, notes: TaskNotes) -> None:
    """Replace the task's notes. Copies of the task keep the old ones."""
    task.custom_input_params = {**(task.custom_input_params or {}), _NOTES: notes}


def noted_draws(task: Task, indices: Iterable[int]) -> list[dict[str, Any]]:
    """The input parameters of copies of a task that are draws of it, and have cost nothing yet."""
    params, notes = task.custom_input_params or {}, notes_of(task)._replace(counts=None)
    return [{**params, _NOTES: notes._replace(draw=(*notes.draw, index))} for index in indices]


def set_purpose(task: Task, purpose: PurposeOf) -> None:
    """Say what the task's tokens are for; the ledger counts them under it. Without it they count as `CHAIN_START`."""
    set_notes(task, notes_of(task)._replace(purpose=purpose))


def purpose_of(task: Task) -> PurposeOf:
    """What the task's tokens are for."""
    return notes_of(task).purpose or default_purpose_of(task)


def default_purpose_of(task: Task) -> PurposeOf:
    """What the task's tokens are for where nobody has said."""
    return _DEFAULT_PURPOSE.get(type(task), CHAIN_START)


def set_turn_start(task: GenerationTask, num_characters: int) -> None:
    """Say that the task goes on with an unfinished answer, and how many characters of `input_str` stand before it."""
    set_notes(task, notes_of(task)._replace(turn_start=num_characters))


def set_priority(task: Task, priority: float) -> None:
    """Set the task's place among the tasks that wait for one worker: the lowest is served first; else 0."""
    set_notes(task, notes_of(task)._replace(priority=priority))


def is_urgent(task: Task) -> bool:
    """Whether a controller waits for the task before it goes on: a probe, a forced answer, a score, a verdict."""
    return purpose_of(task).written is not Purpose.CHAIN


def let_run_to(task: Task, num_tokens: int | None) -> None:
    """Let a stream decode so many tokens, then wait until its controller asks for more.

    The caller's own wish takes precedence. A worker that cannot pause a stream may end it there, with `PAUSED` as its
    finish reason. None lets the stream run to its end.
    """
    set_notes(task, notes_of(task)._replace(may_run_to=num_tokens))


def set_token_counts(task: Task, counts: TokenCounts) -> None:
    """For workers: record what the task has cost so far (cumulative over the steps of a streaming task)."""
    set_notes(task, notes_of(task)._replace(counts=counts))


def token_counts_of(task: Task) -> TokenCounts | None:
    """What the task has cost so far: as the worker recorded it, else estimated from its token ids; None if unknown.

    The estimate, for workers that record nothing, counts every input token as prefilled and every output token as
    decoded. The usage that a worker of upstream's reports takes precedence over the ids.
    """
    counts = notes_of(task).counts
    return estimated_counts_of(task) if counts is None else counts


def estimated_counts_of(task: Task) -> TokenCounts | None:
    """What `token_counts_of` gives where the worker has recorded nothing."""
    if not isinstance(task, GenerationTask):
        return None
    num_decoded = num_decoded_of(task)
    if num_decoded is None:
        num_said = getattr(task, "completion_tokens_num", 0)  # of a chat, which upstream's worker counts there
        return TokenCounts(num_said, getattr(task, "prompt_tokens_num", 0)) if num_said else None
    num_read = getattr(task, "usage_prompt_tokens", None)
    return TokenCounts(num_decoded, len(task.input_tokens or ()) if num_read is None else num_read)


def num_decoded_of(task: GenerationTask) -> int | None:
    """Tokens of the task's output: as the worker says, else counted; None if unknown."""
    usage: int | None = getattr(task, "usage_completion_tokens", None)  # younger than 1.2
    return usage if usage is not None or task.output_tokens is None else len(task.output_tokens)
