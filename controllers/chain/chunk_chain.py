"""A chain of thought in chunks, for any worker; a controller may write the chunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from scaffolding_ext.controllers.chain.chain import CUT, Chain, ChunkText, Prefix, continuation, without_end_token
from scaffolding_ext.controllers.prompting import decode, encode
from scaffolding_ext.prompts.sampling_params import apply_sampling_params, inherit_sampling_params
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask, Task
from scaffolding_ext.protocol.meta import CHAIN, CHAIN_START, Purpose, note
from scaffolding_ext.protocol.task_results import cost_of, finish_reason_of, output_of
from scaffolding_ext.request.ledger import Ledger, Meter


class Chunk(NamedTuple):
    """Text written in one piece.

    Attributes:
        token_ids: Its ids; None if the worker gives none, or if another model with other ids continues.
        num_generated: Tokens that the worker generated for it.
        logprobs: For each of its tokens, if requested.
    """

    text: str
    token_ids: list[int] | None
    num_tokens: int
    num_generated: int
    finish_reason: str
    logprobs: Sequence[Any] = ()

    def without_end(self) -> Chunk:
        """Return the chunk without its end token and finish reason, for another writer to continue."""
        ids = self.token_ids
        if self.finish_reason != "length" and ids:
            ids = without_end_token(ids)
        return self._replace(token_ids=ids, finish_reason="length")


class ChunkChain(Chain):
    """A chain of plain generation tasks, one per chunk; token ids are carried over, so no text is tokenised twice.

    Args:
        carries_ids: If False, chunks are passed on as text, to a reader with another tokenizer.
        reseeds: Give each chunk a different seed.
    """

    runs_on = False

    def __init__(
        self,
        prompt: GenerationTask,
        max_tokens: int,
        sampling_params: dict[str, Any],
        carries_ids: bool = True,
        reseeds: bool = True,
    ) -> None:
        super().__init__(prompt, max_tokens, sampling_params)
        self._reseeds = reseeds
        self._ids: list[int] | None = [] if carries_ids else None
        self._logprobs: list[Any] = []
        self._num_generated = 0
        self._chunk: GenerationTask | None = None

    @property
    def prefix(self) -> Prefix:
        logprobs = list(self._logprobs) if len(self._logprobs) == self._num_tokens > 0 else None
        return Prefix(self._num_tokens, self.text, None if self._ids is None else list(self._ids), logprobs)

    @property
    def num_generated(self) -> int:
        return self._num_generated

    def advance(self, num_tokens: int) -> list[Task]:
        asked = min(num_tokens, self.max_tokens) - self._num_tokens
        if self.ended or asked < 1:
            return []
        if self.is_timed:
            asked = min(asked, self._step_len())
        self._chunk = self.next_chunk(asked, *([self._num_tokens] if self._num_tokens and self._reseeds else []))
        apply_sampling_params(self._chunk, self._sampling_params)
        self._hold_stops(self._chunk)
        if self._num_tokens + asked < self.max_tokens:  # a chunk or a probe will continue it
            note(self._chunk, is_chunk=True)
        return [self._chunk]

    def absorb(self) -> None:
        task, self._chunk = self._chunk, None
        if task is None:
            return
        text, ids, asked = output_of(task), task.output_tokens, task.max_tokens or 0
        produced = asked if ids is None else len(ids)
        cost = cost_of(task)  # if unknown, the ledger counts no tokens either
        generated = 0 if cost is None else cost.written.decoded + cost.written.reused
        reason = finish_reason_of(task) or "length"  # without token ids, a full chunk is assumed
        if reason == "length" and produced < asked:
            reason = "stop"
        self.keep(Chunk(text, ids, produced, generated, reason, task.logprobs or ()), task.stop)

    def stop(self) -> list[Task]:
        return []

    def next_chunk(self, max_tokens: int, *part: int | str) -> GenerationTask:
        """Build a task that continues the chain with the prompt's sampling fields.

        Args:
            part: Number of the chunk, from which its seed derives; without it, the prompt's seed is used.
        """
        task = continuation(self.prompt, self.prefix, max_tokens)
        note(task, purpose=CHAIN if self._num_tokens else CHAIN_START)
        inherit_sampling_params(task, self.prompt, *part)
        self._hold_stops(task)
        return task

    def keep(self, chunk: Chunk, stop: str | list[str] | None) -> None:
        """Append a chunk; the chain may end by itself, by a stop string, at its budget, or on a repetition.

        Args:
            stop: Strings that end the chain wherever they stand; those that it holds end its answer only.
        """
        self._num_generated += chunk.num_generated
        self._num_tokens += chunk.num_tokens
        if chunk.token_ids is None:
            self._ids = None
        elif self._ids is not None:
            self._ids += chunk.token_ids
        self._logprobs += chunk.logprobs
        reason = chunk.finish_reason
        if self._text.add(chunk.text, chunk.token_ids, None if self._stops else stop) and reason == "length":
            reason = "stop"
        self.ended = reason != "length" or self._num_tokens >= self.max_tokens
        self.finish_reason = reason if self.ended else None
        self._look_for_an_end()

    def _end_at(self, place: int) -> int:
        num_cut = super()._end_at(place)
        if num_cut:
            self._logprobs = self._logprobs[:-num_cut]
            self._ids = None if self._ids is None else self._ids[:-num_cut]
        return num_cut

    def _last_ids(self, num_tokens: int) -> list[int] | None:
        return None if self._ids is None else self._ids[-num_tokens:]

    def as_chunk(self) -> Chunk:
        return Chunk(self.text, self.prefix.token_ids, self._num_tokens, 0, "length", tuple(self._logprobs))

    def cut(self, num_tokens: int) -> None:
        """Remove the tokens after a position; `leave` counts them as discarded. The chain continues from there."""
        ids = encode(self.text) if self._ids is None else self._ids
        if ids is None or len(ids) <= num_tokens:
            return
        kept, text = ids[:num_tokens], ChunkText()
        text.add(decode(kept) or "", kept, None)
        self._ids = None if self._ids is None else kept
        self._text, self._logprobs, self._num_tokens = text, self._logprobs[:num_tokens], num_tokens
        self._next_look = 0
        self.ended, self.finish_reason = False, None

    def put(self, token_ids: list[int]) -> None:
        """Append tokens that no worker wrote; they count as the chain's."""
        self.keep(Chunk(decode(token_ids) or "", token_ids, len(token_ids), len(token_ids), "length"), None)


_STOPPED_BY_MODEL = (None, "length", "end")  # exit reasons after which the finish reason decides


class ControlledChain(ChunkChain):
    """A chain whose pieces are written by a controller, which may end before the piece is full."""

    def __init__(self, prompt: GenerationTask, max_tokens: int, controller: Controller) -> None:
        super().__init__(prompt, max_tokens, {})
        self._controller = controller

    def grow(self, num_tokens: int, beside: Sequence[Task] = ()) -> ControllerGenerator:
        if beside:
            yield list(beside)
        wanted = min(num_tokens, self.max_tokens)
        while not self.ended and self.num_tokens < wanted:
            before = self.num_tokens
            task = self.next_chunk(wanted - before, *([before] if before else []))
            note(task, is_chunk=True)
            chunk = yield from written_chunk(self._controller.clone().process([task]), task)
            self.keep(chunk, task.stop)
            if self.num_tokens > wanted:  # the controller exceeded the task's `max_tokens`
                self.cut(wanted)
            if self.num_tokens == before:
                return


def written_chunk(work: Iterable[object], task: GenerationTask) -> ControllerGenerator:
    spent = Ledger()
    yield from Meter(spent).watch(work)
    ids, reason = task.output_tokens, finish_reason_of(task) or "length"
    exit_reason = task.customized_result_fields.get("exit_reason")
    if reason == "length" and exit_reason not in _STOPPED_BY_MODEL:
        reason = exit_reason if exit_reason in CUT else "stop"
    decoded = spent.by_purpose.get(Purpose.CHAIN)
    num_tokens = (task.max_tokens or 0) if ids is None else len(ids)
    return Chunk(output_of(task), ids, num_tokens, 0 if decoded is None else decoded.decoded, reason)
