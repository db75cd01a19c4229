"""A chain of thought that grows piece by piece, its text, and the tasks that continue it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from scaffolding_ext.answers.reading import Splitter
from scaffolding_ext.answers.stop_strings import StopStrings
from scaffolding_ext.controllers.prompting import (
    decode,
    encode,
    held_stops,
    num_tokens_to,
    prompt_family,
    thinking_is_open,
)
from scaffolding_ext.controllers.repetition import Loops
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.encoding import UNREADABLE
from scaffolding_ext.prompts.families import PromptFamily
from scaffolding_ext.prompts.sampling_params import apply_sampling_params, inherit_sampling_params
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask, Task
from scaffolding_ext.protocol.meta import Purpose, meta_of, note
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.request.parts import is_paced, reached
from scaffolding_ext.request.program import DEADLINE, current_program, discard, elapsed, record, seconds_left

LOOP = "loop"  # finish reason of a repetitive chain
CUT = (LOOP, DEADLINE)  # finish reasons of chains that were cut off; their answer is asked for
UNANSWERED = ("length", *CUT)  # finish reasons of chains that did not end by themselves
ANSWER_LEN = 64  # tokens for which a deadline leaves time
LOOP_STEP = 64  # tokens between checks for loops
PACE_STEP = 16  # tokens between the first positions that a paced chain reports


class Prefix(NamedTuple):
    """A chain as it stood at one position.

    Attributes:
        num_tokens: Tokens of the chain, without the prompt.
        token_ids: Their ids; None if the worker gives none.
        logprobs: For each token a dict of the likeliest ids at its position, each with a `logprob` (and perhaps a
            `rank`); None if `num_logprobs` was not requested.
    """

    num_tokens: int
    text: str
    token_ids: list[int] | None
    logprobs: list[Any] | None = None

    def token_logprobs(self) -> list[Any]:
        if self.logprobs is None and self.num_tokens:
            raise ConfigError(
                "the chain has no log-probabilities: add num_logprobs to its sampling_params, such as "
                "{'num_logprobs': 5}. If it is set already, use a worker that reports them",
                "num_logprobs",
            )
        return self.logprobs or []


class _Split(NamedTuple):
    """The text of a chain that was split so far."""

    family: PromptFamily
    text: str
    splitter: Splitter


class Chain(ABC):
    """One chain of thought on a prompt.

    A chain is read only at token positions: its prefix, text and end depend on how far it was told to grow, never on
    how much has arrived. Tokens beyond that count as discarded.

    Attributes:
        family: Prompt family behind the prompt; a controller may set another.
        runs_on: True if the worker continues the chain while no task of it is yielded.
        finish_reason: After the end: `"length"` at the budget, `"loop"` if the stack's `loops` found a repetition,
            `"deadline"` if the deadline leaves time only for the answer, else the worker's reason.
        is_timed: True if the chain ends in time for the request's deadline.
        is_paced: True if a vote waits for the chain's positions.
        is_stopped: True if the chain found a stop string behind its thinking; its worker may still write.

    Args:
        prompt: The task whose `input_str` (and `input_tokens`, if it has them) the chain answers.
        sampling_params: Sampling fields of the chain; a field set by the prompt's task takes precedence.
    """

    runs_on: ClassVar[bool]

    def __init__(self, prompt: GenerationTask, max_tokens: int, sampling_params: dict[str, Any]) -> None:
        self.prompt = prompt
        self.family = prompt_family(prompt)
        self.max_tokens = max_tokens
        self.ended = False
        self.is_stopped = False
        self.finish_reason: str | None = None
        self._sampling_params = sampling_params
        self._num_tokens = 0
        self._text = ChunkText()
        program = current_program()
        self.loops: Loops | None = None if program is None else program.loops
        self._next_look = LOOP_STEP
        self.is_timed = seconds_left() is not None
        self.is_paced = is_paced()
        self._first_read: tuple[float, int] | None = None  # time and position
        self._split: _Split | None = None
        self._stops = StopStrings()  # end the answer, but not the thinking

    @property
    @abstractmethod
    def prefix(self) -> Prefix:
        """The chain so far."""

    @property
    @abstractmethod
    def num_generated(self) -> int:
        """Tokens that the worker has generated for the chain, read or not, decoded or reused."""

    @abstractmethod
    def advance(self, num_tokens: int) -> list[Task]:
        """Return the tasks that grow the chain towards `num_tokens`; none once it is there or has ended.

        Yield them, call `absorb`, and repeat until there are none; `grow` does all of that.
        """

    @abstractmethod
    def absorb(self) -> None:
        """Take in the results of the tasks of the last `advance` or `stop`."""

    @abstractmethod
    def stop(self) -> list[Task]:
        """Return the tasks that make the worker drop the chain; yield them, then `absorb`. `leave` does both."""

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    @property
    def text(self) -> str:
        return self._text.text

    @property
    def has_thought(self) -> bool:
        """True once the chain of a model that thinks is behind its thinking, or answers without any."""
        if not self.family.thinks:
            return False
        text, before = self.text, self._split
        if before is None or not text.startswith(before.text) or before.family is not self.family:
            splitter = Splitter(self.family.marks, thinking_is_open(self.prompt, self.family))
            before = _Split(self.family, "", splitter)
        before.splitter.feed(text[len(before.text) :])
        self._split = before._replace(text=text)
        return before.splitter.has_thought

    def grow(self, num_tokens: int, beside: Sequence[Task] = ()) -> ControllerGenerator:
        """Grow the chain to `num_tokens` tokens, or until it ends before that or at its budget.

        Args:
            num_tokens: Position to reach, counted from the chain's beginning.
            beside: Other tasks to run in the meantime, such as a probe; they are done afterwards, too.
        """
        tasks = self.advance(num_tokens)
        while tasks or beside:
            yield [*tasks, *beside]
            if tasks:
                self.absorb()
            tasks, beside = self.advance(num_tokens), ()
        if self.is_paced:  # not behind a yield, which what has arrived already does not need
            reached(self._num_tokens)

    def leave(self, prefix: Prefix | None = None) -> ControllerGenerator:
        """Make the worker drop the chain; tokens beyond the prefix count as discarded."""
        kept = self._num_tokens if prefix is None else prefix.num_tokens
        tasks = self.stop()
        if tasks:
            yield tasks
            self.absorb()
        discard(Purpose.CHAIN, max(0, self.num_generated - kept))

    def _hold_stops(self, piece: GenerationTask) -> None:
        """Keep a piece's stop strings from its worker as long as the chain may think."""
        self._stops = held_stops(piece, self.family) or self._stops

    def _look_for_a_stop(self) -> None:
        if not self._stops or not self._num_tokens:
            return
        splitter = Splitter(self.family.marks, thinking_is_open(self.prompt, self.family), self._stops)
        splitter.feed(self.text)
        at = (splitter.end() if self.ended else splitter.reading).stopped_at
        if at is not None:
            self._end_at(at)
            self.ended, self.finish_reason, self.is_stopped = True, "stop", True

    def _end_at(self, place: int) -> int:
        """Cut the text at a stop string, and the tokens behind the one that completes it; return their number."""
        ids = self.prefix.token_ids
        num_cut = 0 if ids is None else len(ids) - num_tokens_to(self._stops.end_of(self.text, place), ids)
        self._num_tokens -= num_cut
        self._text.text = self.text[:place]
        return num_cut

    def _look_for_an_end(self) -> None:
        self._look_for_a_stop()
        left = seconds_left() if self.is_timed and not self.ended else None
        if left is not None and left < (LOOP_STEP + ANSWER_LEN) * self._seconds_per_token():
            record(DEADLINE, position=self._num_tokens, seconds_left=round(left, 6))
            self.ended, self.finish_reason = True, DEADLINE
        self._look_for_loops()

    def _seconds_per_token(self) -> float:
        """Seconds per token, waits included, since the chain was first read; 0 at that moment."""
        now = elapsed()
        if self._first_read is None:
            self._first_read = now, self._num_tokens
        began, num_before = self._first_read
        return (now - began) / max(1, self._num_tokens - num_before)

    def _step_len(self) -> int:
        """Tokens until the next check of the clock: half of the remaining time, at least `LOOP_STEP`."""
        left = seconds_left() if self.is_timed else None
        if left is None or self._first_read is None or not (seconds := self._seconds_per_token()):
            return LOOP_STEP
        return max(LOOP_STEP, int(left / 2 / seconds))

    def _look_for_loops(self) -> None:
        """End the chain if it repeats itself; closed thinking is not checked any more."""
        if self.loops is None or self._num_tokens < (1 if self.ended else self._next_look):
            return
        self._next_look = (self._num_tokens // LOOP_STEP + 1) * LOOP_STEP
        if (self.ended and self.finish_reason != "length") or self.has_thought:
            return
        found = self.loops.find(self.text, self._last_ids(self.loops.reach))
        if found is not None:
            record("loop", position=self._num_tokens, **found._asdict())
            self.ended, self.finish_reason = True, LOOP

    def _last_ids(self, num_tokens: int) -> list[int] | None:
        ids = self.prefix.token_ids
        return None if ids is None else ids[-num_tokens:]

    def _configure(self, piece: GenerationTask, position: int = 0) -> None:
        inherit_sampling_params(piece, self.prompt, *([position] if position else []))
        apply_sampling_params(piece, self._sampling_params)
        self._hold_stops(piece)


def continuation(prompt: GenerationTask, prefix: Prefix, max_tokens: int, suffix: str = "") -> GenerationTask:
    """Build a task that generates after prompt, prefix and suffix: as token ids if all three are known, and as text."""
    suffix_ids = encode(suffix) if suffix else []
    ids = None
    if prompt.input_tokens is not None and prefix.token_ids is not None and suffix_ids is not None:
        ids = prompt.input_tokens + prefix.token_ids + suffix_ids
    text = None if prompt.input_str is None else prompt.input_str + prefix.text + suffix
    task = GenerationTask(worker_tag=WorkerTag.GENERATION, input_str=text, input_tokens=ids, max_tokens=max_tokens)
    if suffix_ids:
        note(task, num_suffix_tokens=len(suffix_ids))
    if prompt.input_str is not None and (prefix.text or suffix):
        note(task, turn_start=len(prompt.input_str), turns=meta_of(prompt).turns)
    return task


class ChunkText:
    """Text that grows piece by piece.

    A worker decodes each chunk separately and loses a character or stop string that spans two chunks. The worker's
    tokenizer therefore decodes ids again in the context of the earlier ones.

    Attributes:
        text: The text so far, without a trailing incomplete character.
    """

    def __init__(self) -> None:
        self.text = ""
        self._context: list[int] = []  # last ids whose text is in `text`
        self._pending: list[int] = []  # ids after them that end inside a character
        self._pending_text = ""  # the worker's text of those

    def add(self, text: str, token_ids: list[int] | None, stop: str | list[str] | None) -> bool:
        searched = len(self.text)
        if token_ids is None or not is_text_of(token_ids, text):
            self.text += self._pending_text + text
            self._context, self._pending, self._pending_text = [], [], ""
        else:
            self._pending_text += text
            self.add_ids(token_ids)
        stops = [stop] if isinstance(stop, str) else stop or []
        found = [at for s in stops if s and (at := self.text.find(s, max(0, searched - len(s)))) >= 0]
        if found:
            self.text = self.text[: min(found)]
        return bool(found)

    def add_ids(self, token_ids: list[int]) -> None:
        self._pending += token_ids
        known = decode(self._context) or ""
        together = decode(self._context + self._pending) or ""
        if not together.endswith(UNREADABLE):
            self.text += together[len(known) :]
            self._context, self._pending, self._pending_text = self._pending, [], ""


def is_text_of(token_ids: list[int], text: str, whole: bool = True) -> bool:
    """Return True if the running request's tokenizer decodes the ids to the text, ignoring partial characters.

    Args:
        whole: If False, the text may lack its end: workers hold back a possible beginning of a stop string.
    """
    decoded = decode(token_ids)
    if decoded is None:
        return False
    ours, theirs = decoded.replace(UNREADABLE, ""), text.replace(UNREADABLE, "")
    return ours == theirs if whole else ours.startswith(theirs)


def without_end_token(token_ids: list[int]) -> list[int]:
    """Drop the end token, which has no text, that some workers report after an ended text."""
    return token_ids[:-1] if decode(token_ids[-1:]) == "" else token_ids
