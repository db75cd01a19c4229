"""A chain of thought that grows piece by piece, in one stream or in chunks, and answers that are forced out of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

from scaffolding_ext.answers import extract, up_to_brace
from scaffolding_ext.controllers.base import encode, finish
from scaffolding_ext.controllers.chunk_text import ChunkText
from scaffolding_ext.controllers.native_generation import apply_sampling_params, inherit_sampling_params
from scaffolding_ext.program import current_program, derive_seed, record
from scaffolding_ext.prompting import PromptFamily
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask, StreamGenerationTask, Task
from scaffolding_ext.tasks import (
    CHAIN,
    CHAIN_START,
    PROBE,
    Purpose,
    WorkerTag,
    output_of,
    set_purpose,
    token_counts_of,
)


class Prefix(NamedTuple):
    """A chain as it stood at one moment.

    Attributes:
        num_tokens: How many tokens of the chain it holds (the prompt not counted).
        text: Their text.
        token_ids: Their ids, or None where the worker gives none.
    """

    num_tokens: int
    text: str
    token_ids: list[int] | None


class Chain(ABC):
    """One chain of thought on a prompt.

    Attributes:
        runs_on: Whether the chain keeps growing while nothing of it is yielded.
        ended: Whether the chain has ended, by itself or at its budget.
        finish_reason: `"length"` where the budget ended it.

    Args:
        prompt: The task whose `input_str` (and `input_tokens`, where it has them) the chain answers.
        max_tokens: The chain's budget in tokens.
        sampling_params: Sampling fields of the chain; those that the prompt's task sets itself go before them.
    """

    runs_on: ClassVar[bool]

    def __init__(self, prompt: GenerationTask, max_tokens: int, sampling_params: dict[str, Any]) -> None:
        self.prompt = prompt
        self.max_tokens = max_tokens
        self.ended = False
        self.finish_reason: str | None = None
        self._sampling_params = sampling_params
        self._num_scanned_characters = 0
        self._marker_found = False

    @property
    @abstractmethod
    def prefix(self) -> Prefix:
        """The chain so far."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The text of the chain so far."""

    @abstractmethod
    def advance(self, num_tokens: int) -> list[Task]:
        """Tasks to yield so that the chain reaches `num_tokens` (or ends); call `absorb` after the yield."""

    @abstractmethod
    def absorb(self) -> None:
        """Take in what the worker wrote into the tasks of the last `advance` or `stop`."""

    @abstractmethod
    def stop(self) -> list[Task]:
        """Tasks to yield so that the worker gives the chain up; call `absorb` after the yield."""

    @property
    @abstractmethod
    def num_decoded(self) -> int:
        """Tokens decoded for the chain so far, delivered or not."""

    def contains(self, marker: str) -> bool:
        """Whether the marker stands in the chain; ask for one marker only (each character is looked at once)."""
        if not self._marker_found:
            text = self.text
            start = max(0, self._num_scanned_characters - len(marker))
            self._marker_found = text.find(marker, start) >= 0
            self._num_scanned_characters = len(text)
        return self._marker_found

    def _configure(self, piece: GenerationTask) -> None:
        """Set the sampling fields of a task that generates a piece of the chain."""
        inherit_sampling_params(piece, self.prompt)
        if piece.seed is not None and self.prefix.num_tokens:  # a seed used twice would draw the same numbers again
            piece.seed = derive_seed(piece.seed, self.prefix.num_tokens)
        apply_sampling_params(piece, self._sampling_params)

    def discard_after(self, prefix: Prefix) -> int:
        """Count what was decoded beyond the prefix as discarded; return how many tokens that is."""
        num_discarded = max(0, self.num_decoded - prefix.num_tokens)
        program = current_program()
        if program is not None:
            program.ledger.discard(Purpose.CHAIN, num_discarded)
        return num_discarded


class StreamChain(Chain):
    """One uninterrupted streaming generation: no token of the chain is prefilled twice."""

    runs_on = True

    def __init__(
        self,
        prompt: GenerationTask,
        max_tokens: int,
        sampling_params: dict[str, Any],
        streaming_output: bool = False,
    ) -> None:
        super().__init__(prompt, max_tokens, sampling_params)
        self._task = StreamGenerationTask(
            worker_tag=WorkerTag.GENERATION,
            input_str=prompt.input_str,
            input_tokens=prompt.input_tokens,
            max_tokens=max_tokens,
            streaming_output_flag=streaming_output,
        )
        set_purpose(self._task, CHAIN_START)
        self._configure(self._task)

    @property
    def prefix(self) -> Prefix:
        ids = self._task.output_tokens
        return Prefix(len(ids or ()), self.text, None if ids is None and self.text else list(ids or ()))

    @property
    def text(self) -> str:
        return self._task.output_str or ""

    def advance(self, num_tokens: int) -> list[Task]:
        self._task.streaming_step = max(1, num_tokens - len(self._task.output_tokens or ()))
        return [self._task]

    def absorb(self) -> None:
        if not self._task.cancel_flag:
            output_of(self._task)
        self.ended = self._task.end_flag
        self.finish_reason = self._task.finish_reason
        if self.ended and self.finish_reason is None and self.prefix.num_tokens >= self.max_tokens:
            self.finish_reason = "length"  # workers before finish_reason

    def stop(self) -> list[Task]:
        if self.ended:
            return []
        self._task.cancel_flag = True
        return [self._task]

    @property
    def num_decoded(self) -> int:
        counts = token_counts_of(self._task)
        return counts.decoded if counts else 0


class ChunkChain(Chain):
    """Plain generation tasks, one a chunk; token ids are carried on, so that no text is tokenised twice."""

    runs_on = False

    def __init__(self, prompt: GenerationTask, max_tokens: int, sampling_params: dict[str, Any]) -> None:
        super().__init__(prompt, max_tokens, sampling_params)
        self._num_tokens = 0
        self._text = ChunkText()
        self._ids: list[int] | None = []
        self._num_decoded = 0
        self._chunk: GenerationTask | None = None

    @property
    def prefix(self) -> Prefix:
        return Prefix(self._num_tokens, self.text, None if self._ids is None else list(self._ids))

    @property
    def text(self) -> str:
        return self._text.text

    def advance(self, num_tokens: int) -> list[Task]:
        asked = max(1, min(num_tokens, self.max_tokens) - self._num_tokens)
        first = self._num_tokens == 0
        self._chunk = continuation(self.prompt, self.prefix, asked)
        set_purpose(self._chunk, CHAIN_START if first else CHAIN)
        self._configure(self._chunk)
        return [self._chunk]

    def absorb(self) -> None:
        chunk, self._chunk = self._chunk, None
        if chunk is None:
            return
        text = output_of(chunk)
        asked = chunk.max_tokens or 0
        produced = asked if chunk.output_tokens is None else len(chunk.output_tokens)
        counts = token_counts_of(chunk)
        self._num_decoded += 0 if counts is None else counts.decoded  # the ledger knows of no others either
        self._num_tokens += produced
        if chunk.output_tokens is None:
            self._ids = None
        elif self._ids is not None:
            self._ids += chunk.output_tokens
        stopped = self._text.add(text, chunk.output_tokens, chunk.stop) or chunk.finish_reason not in (None, "length")
        self.ended = stopped or produced < asked or self._num_tokens >= self.max_tokens
        if stopped or produced < asked:
            self.finish_reason = chunk.finish_reason if chunk.finish_reason not in (None, "length") else "stop"
        elif self.ended:
            self.finish_reason = "length"

    def stop(self) -> list[Task]:
        return []

    @property
    def num_decoded(self) -> int:
        return self._num_decoded


def continuation(prompt: GenerationTask, prefix: Prefix, max_tokens: int, suffix: str = "") -> GenerationTask:
    """A task that generates after prompt, prefix and suffix, as token ids where all three are known, and as text."""
    suffix_ids = encode(suffix) if suffix else []
    ids = None
    if prompt.input_tokens is not None and prefix.token_ids is not None and suffix_ids is not None:
        ids = prompt.input_tokens + prefix.token_ids + suffix_ids
    text = None if prompt.input_str is None else prompt.input_str + prefix.text + suffix
    return GenerationTask(worker_tag=WorkerTag.GENERATION, input_str=text, input_tokens=ids, max_tokens=max_tokens)


def asking(prompt: GenerationTask, prefix: Prefix, suffix: str, sampling_params: dict[str, Any]) -> GenerationTask:
    """A task that asks an unfinished chain for its answer with a suffix that opens a box."""
    task = continuation(prompt, prefix, sampling_params["max_tokens"], suffix)
    apply_sampling_params(task, sampling_params)
    set_purpose(task, PROBE)
    return task


def asked_answer(task: GenerationTask) -> str | None:
    """The answer in the response to `asking`; None where the box was not closed or is empty."""
    return up_to_brace(output_of(task)) or None


def conclude(
    task: GenerationTask, chain: Chain, family: PromptFamily, sampling_params: dict[str, Any]
) -> ControllerGenerator:
    """Write the output of a chain that is to go no further: its own, or with an answer that is forced out of it.

    Args:
        task: Gets the output.
        chain: Has ended by itself, at its budget, or is simply left.
        family: How thinking is closed.
        sampling_params: Sampling fields of the forced answer, `max_tokens` among them.
    """
    prefix = chain.prefix
    thinking_closed = chain.contains(family.think_close)
    answer = extract(prefix.text.rpartition(family.think_close)[2])
    record("end", position=prefix.num_tokens, finish_reason=chain.finish_reason, answer=answer)
    ended_by_itself = chain.ended and chain.finish_reason != "length"
    if ended_by_itself or (thinking_closed and answer is not None):
        finish(task, prefix.text, prefix.token_ids, answer, "end" if ended_by_itself else "length")
        return
    close = family.close_closed if thinking_closed else family.close
    forced = asking(task, prefix, close, sampling_params)
    yield [forced]
    answer = asked_answer(forced)
    record("force", position=prefix.num_tokens, answer=answer)
    if answer is None:
        finish(task, prefix.text, prefix.token_ids, None, "length")
    else:
        close_with(task, prefix, close, answer, family, "length")


def close_with(
    task: GenerationTask, prefix: Prefix, close: str, answer: str, family: PromptFamily, exit_reason: str
) -> None:
    """Write prefix, closing text and answer as the task's output."""
    ending = close + answer + family.answer_end
    ending_ids = encode(ending)
    ids = None if prefix.token_ids is None or ending_ids is None else prefix.token_ids[: prefix.num_tokens] + ending_ids
    finish(task, prefix.text + ending, ids, answer, exit_reason)
