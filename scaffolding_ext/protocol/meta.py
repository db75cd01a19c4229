"""This package's data on a task of any class and host: `task.meta`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from scaffolding_ext.protocol import GenerationTask, Task
from scaffolding_ext.protocol.branching import VerifyTask
from scaffolding_ext.protocol.tasks import ScoreTask

CONTINUED_TURNS = "continued turns"  # in a worker's `refused`: see `Meta.turn_start`
PAUSED = "paused"  # finish reason of a stream that its worker ended for lack of requests


class Purpose(str, Enum):
    """Purpose of computed tokens.

    `rejected` was turned down by a rule, such as a draft that the target rewrote. `discarded` was decoded beyond the
    point at which a decision ended it. `overhead` was computed by an engine to decide how to serve the request. `audit`
    was computed after the answer, to measure the effect of an early stop.
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
    """Tokens decoded one by one, prefilled in parallel, and reused from the KV cache."""

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
    """A thinking budget for a server; `is_open` is True if the prompt ends in `open` and perhaps white space."""

    max_tokens: int
    open: str
    close: str
    is_open: bool


class ToolCall(NamedTuple):
    """A call of a tool; the arguments are JSON text."""

    name: str
    arguments: str


class Meta(NamedTuple):
    """This package's data on a task, in its attribute `meta`.

    Attributes:
        purpose: Purpose of its tokens in the ledger; None takes the task type's default.
        turn_start: Index in `input_str` of an unfinished answer that the task continues; None if it begins an answer.
        priority: Among the tasks that wait for one worker, the lowest is served first.
        is_chunk: True if a later task continues the chain when `max_tokens` cuts it off.
        counts: Tokens so far, over all steps of a stream; None if its worker has recorded none.
        uncounted: Part of its cost that the worker does not know: `PROMPT`, of a stream that was closed before its
            server told it, or `REUSE`, if the server tells no cached tokens, so that all of the prompt counts as read.
        sampling_fields: Names of the sampling fields that were set, to any value.
        may_run_to: Tokens at which a stream pauses until its controller asks for more; None sets no bound. A worker
            that cannot pause a stream may end it there, with `PAUSED` as its finish reason.
        draw: Position among the request's draws: samples, chains, pieces. Each draw derives its seed from a shared one.
        num_suffix_tokens: Tokens of its input that ask an unfinished chain for something.
        turns: Turns before `input_str`, for a worker that takes messages.
        last_turn: Fields of the turn of `input_str` beside its content, if it is not the user's.
        tools: Fields for tools of a chat request, `tools` and `tool_choice`, as the server takes them.
        calls: The tool calls of its output.
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
    last_turn: Mapping[str, Any] | None = None
    tools: Mapping[str, Any] | None = None
    calls: tuple[ToolCall, ...] = ()
    uncounted: str | None = None


PROMPT, REUSE = "prompt", "reuse"
_PLAIN = Meta()
_DEFAULT_PURPOSE: dict[type[Any], PurposeOf] = {ScoreTask: SCORE, VerifyTask: VERIFY}


def meta_of(task: Task) -> Meta:
    meta: Meta = task.__dict__.get("meta", _PLAIN)
    return meta


def note(task: Task, **fields: Any) -> None:
    """Change fields of a task's `meta`; copies of the task keep the old ones."""
    task.__dict__["meta"] = meta_of(task)._replace(**fields)


def purpose_of(task: Task) -> PurposeOf:
    return meta_of(task).purpose or default_purpose_of(task)


def default_purpose_of(task: Task) -> PurposeOf:
    return _DEFAULT_PURPOSE.get(type(task), CHAIN_START)


def is_urgent(task: Task) -> bool:
    """Return True if a controller waits for the task: a probe, a forced answer, a score, a verdict."""
    return purpose_of(task).written is not Purpose.CHAIN


def token_counts_of(task: Task) -> TokenCounts | None:
    """Return the tokens so far: recorded by the worker, else by upstream's usage, else by token ids (input
    prefilled).
    """
    counts = meta_of(task).counts
    return estimated_counts_of(task) if counts is None else counts


def estimated_counts_of(task: Task) -> TokenCounts | None:
    if not isinstance(task, GenerationTask):
        return None
    num_decoded = num_decoded_of(task)
    if num_decoded is None:
        num_said = getattr(task, "completion_tokens_num", 0)  # upstream's worker counts a chat there
        return TokenCounts(num_said, getattr(task, "prompt_tokens_num", 0)) if num_said else None
    num_read = getattr(task, "usage_prompt_tokens", None)
    return TokenCounts(num_decoded, len(task.input_tokens or ()) if num_read is None else num_read)


def num_decoded_of(task: GenerationTask) -> int | None:
    usage: int | None = getattr(task, "usage_completion_tokens", None)  # newer than 1.2
    return usage if usage is not None or task.output_tokens is None else len(task.output_tokens)
