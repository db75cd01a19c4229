"""Notes on a task, whatever its class and under either host: its purpose, its cost, its place in a waiting line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

    `rejected` was turned down by a rule, such as a draft that the target wrote anew. `discarded` was decoded beyond the
    point where a decision ended it. `overhead` was computed by an engine to find out how to serve the request.
    `audit` was computed behind the answer, to find out what an early stop has changed.
    """

    PROMPT = "prompt"
    CHAIN = "chain"
    PROBE = "probe"
    SCORE = "score"
    VERIFY = "verify"
    REJECTED = "rejected"
    DISCARDED = "discarded"
    OVERHEAD = "overhead"
    AUDIT = "audit"

    def __str__(self) -> str:
        return self.value


class TokenCounts(NamedTuple):
    """Tokens by how they were had: decoded one by one, prefilled (in parallel), or reused from the KV cache."""

    decoded: int = 0
    prefilled: int = 0
    reused: int = 0

    @property
    def computed(self) -> int:
        return self.decoded + self.prefilled

    def minus(self, other: TokenCounts) -> TokenCounts:
        return TokenCounts(self[0] - other[0], self[1] - other[1], self[2] - other[2])


class PurposeOf(NamedTuple):
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
        open: The text that opens thinking; `close` is the text that closes it.
        is_open: Whether the prompt ends in `open`, and white space perhaps.
    """

    max_tokens: int
    open: str
    close: str
    is_open: bool


class TaskNotes(NamedTuple):
    """The notes of this package on a task.

    Attributes:
        turn_start: Index in `input_str` of an unfinished answer that the task continues; None if it begins an answer.
        priority: Among the tasks that wait for one worker, the lowest is served first.
        is_chunk: Whether a later task continues the chain if `max_tokens` cuts it off.
        counts: Tokens so far; None if its worker has recorded none.
        sampling_fields: Names of the sampling fields that were set, whatever their values.
        may_run_to: Tokens at which a stream pauses; None if nothing bounds it.
        draw: Which draw of its request it is: samples, chains and pieces, from the outermost in. Each draw derives a
            seed of its own from a seed that is given for all.
        num_suffix_tokens: Tokens of its input that ask an unfinished chain for something.
        turns: The turns before `input_str`, for a worker that takes messages.
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
    turns: tuple[Mapping[str, Any], ...] = ()


_NO_NOTES = TaskNotes()
_DEFAULT_PURPOSE: dict[type[Any], PurposeOf] = {ScoreTask: SCORE, VerifyTask: VERIFY}


def notes_of(task: Task) -> TaskNotes:
    params = task.custom_input_params
    notes: TaskNotes = _NO_NOTES if params is None else params.get(_NOTES, _NO_NOTES)
    return notes


def set_notes(task: Task, notes: TaskNotes) -> None:
    """Copies of the task keep the old notes."""
    task.custom_input_params = {**(task.custom_input_params or {}), _NOTES: notes}


def noted_draws(task: Task, indices: Iterable[int]) -> list[dict[str, Any]]:
    params, notes = task.custom_input_params or {}, notes_of(task)._replace(counts=None)
    return [{**params, _NOTES: notes._replace(draw=(*notes.draw, index))} for index in indices]


def set_purpose(task: Task, purpose: PurposeOf) -> None:
    """Say what the task's tokens are for; the ledger counts them under it. Without it they count as `CHAIN_START`."""
    set_notes(task, notes_of(task)._replace(purpose=purpose))


def purpose_of(task: Task) -> PurposeOf:
    return notes_of(task).purpose or default_purpose_of(task)


def default_purpose_of(task: Task) -> PurposeOf:
    return _DEFAULT_PURPOSE.get(type(task), CHAIN_START)


def set_turn_start(task: GenerationTask, num_characters: int) -> None:
    """Say that the task goes on with an unfinished answer, and how many characters of `input_str` stand before it."""
    set_notes(task, notes_of(task)._replace(turn_start=num_characters))


def set_priority(task: Task, priority: float) -> None:
    """The lowest is served first; 0 by default."""
    set_notes(task, notes_of(task)._replace(priority=priority))


def is_urgent(task: Task) -> bool:
    """Whether a controller waits for the task before it goes on: a probe, a forced answer, a score, a verdict."""
    return purpose_of(task).written is not Purpose.CHAIN


def let_run_to(task: Task, num_tokens: int | None) -> None:
    """Let a stream decode so many tokens, and then pause until its controller asks for more; None does not bound it.

    A worker that cannot pause a stream may end it there, with `PAUSED` as its finish reason.
    """
    set_notes(task, notes_of(task)._replace(may_run_to=num_tokens))


def set_token_counts(task: Task, counts: TokenCounts) -> None:
    """For workers: record what the task has cost so far (cumulative over the steps of a streaming task)."""
    set_notes(task, notes_of(task)._replace(counts=counts))


def token_counts_of(task: Task) -> TokenCounts | None:
    """Tokens so far: by the worker's record, else by upstream's usage, else by token ids (input prefilled)."""
    counts = notes_of(task).counts
    return estimated_counts_of(task) if counts is None else counts


def estimated_counts_of(task: Task) -> TokenCounts | None:
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
