"""Server answers, read whole or streamed in the background, so a connection never waits for its reader."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scaffolding_ext.errors import EngineError, NoOutputError, WorkerError
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.meta import PAUSED, PROMPT, REUSE, TokenCounts, note
from scaffolding_ext.request.program import record
from scaffolding_ext.workers.openai.connection import Connection
from scaffolding_ext.workers.openai.fields import CallPart, UnreadableAnswerError, joined_calls
from scaffolding_ext.workers.openai.flavors import Flavor
from scaffolding_ext.workers.openai.requests import RequestBodies
from scaffolding_ext.workers.openai.responses import (
    LostIds,
    Piece,
    Steps,
    WholeText,
    read_piece,
    tells_reuse,
    token_counts,
)
from scaffolding_ext.workers.shared.id_stops import IdStops
from scaffolding_ext.workers.shared.streaming import NEVER


class Answer(NamedTuple):
    """A server's answer so far, or its final answer.

    Attributes:
        logprobs: Log-probabilities reported per token.
        finish_reason: `"stop"`, `"length"`, `"cancelled"` or `PAUSED`; None while it runs.
        counts: Its cost; the prompt's part is missing until the server reports it.
        uncounted: Part of its cost that remains unknown, once it has ended; see `Meta`.
        calls: Its tool calls, or pieces of them.
    """

    text: str
    token_ids: list[int] | None
    logprobs: Steps
    finish_reason: str | None
    counts: TokenCounts
    uncounted: str | None = None
    calls: Sequence[CallPart] = ()


def read_answer(reply: Any, flavor: Flavor, expects_ids: bool, lost_ids: LostIds | None = None) -> Answer:
    """Read a whole answer."""
    piece = read_piece(reply.choices[0], flavor)
    piece = piece if lost_ids is None else lost_ids.restored(piece)
    _check_ids(piece, expects_ids)
    if piece.finish_reason is None:
        raise UnreadableAnswerError("the server's answer has finish_reason None, so nothing says if it is whole")
    usage = getattr(reply, "usage", None)
    counts = token_counts(usage, len(piece.token_ids or ()))
    piece = piece if lost_ids is None else lost_ids.ended(piece, counts.decoded)
    uncounted = None if flavor.tells_reuse or tells_reuse(usage) else REUSE
    text, reason = WholeText().add(piece), piece.finish_reason
    return Answer(text, piece.token_ids, piece.logprobs, reason, counts, uncounted, piece.calls)


class StreamReader:
    """One streamed answer. Only its constructor may run outside the connection's loop.

    Args:
        connection: Connection to the server.
        path: `"completions"` or `"chat"`.
        body: The request.
        flavor: Kind of the server.
        expects_ids: If True, missing token ids are an error.
        lost_ids: Restores token ids that the server omits.
        stops: Strings that end the answer if the server does not match them. Later tokens are counted but not kept.
        is_piece: True if its budget is only part of the task's, so the stream's end is a pause.
        holds_back: If True, an answer ends with the piece that has the last requested token, even if more has arrived.
            This serves a reader without a tokenizer, which cannot cut the answer.

    Attributes:
        may_run_to: Number of tokens at which the stream is closed with reason `PAUSED`, since a server cannot pause it.
    """

    def __init__(
        self,
        connection: Connection,
        path: str,
        body: Mapping[str, Any],
        flavor: Flavor,
        expects_ids: bool,
        lost_ids: LostIds | None = None,
        stops: IdStops | None = None,
        is_piece: bool = False,
        holds_back: bool = False,
    ) -> None:
        self.may_run_to = NEVER
        self.num_retries = 0
        self.error: WorkerError | NoOutputError | None = None
        self._connection = connection
        self._path = path
        self._body = body
        self._flavor = flavor
        self._expects_ids = expects_ids
        self._lost_ids = lost_ids
        self._stops = stops
        self._is_piece = is_piece
        self._holds_back = holds_back
        self._is_cut = False
        self._texts: list[str] = []
        self._whole = WholeText()
        self._ids: list[int] | None = [] if expects_ids else None
        self._logprobs: Steps = []
        self._calls: list[CallPart] = []
        self._finish_reason: str | None = None
        self._usage: Any = None
        self._num_received = 0
        self._most_received = 2 * body["max_tokens"] + 64  # speculation may overshoot, and some count no thinking
        self._marks: list[_Mark] = []
        self._ended = False
        self._grown: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def ended(self) -> bool:
        return self._ended or self._task is None

    async def wait(self, num_tokens: int) -> Answer:
        """Wait for that many tokens (pieces, if the server returns no ids) or the end."""
        if self._task is None:
            self._grown = asyncio.Event()
            self._task = asyncio.ensure_future(self._read(self._grown))
        while not self._ended and self._num_received < num_tokens and self._grown is not None:
            self._grown.clear()
            await self._grown.wait()
        return self._answer(num_tokens if self._holds_back else NEVER)

    async def cancel(self) -> Answer:
        """Close the connection, which stops the server, and return the answer so far."""
        if self._task is not None and not self._ended:
            self._task.cancel()
            await asyncio.wait([self._task])
        return self._answer()

    async def _read(self, grown: asyncio.Event) -> None:
        try:
            async with self._connection.stream(self._path, self._body) as pieces:
                async for reply in pieces:
                    self.num_retries = reply.num_retries
                    self._take(reply.value)
                    if self._is_cut:
                        return
                    if self._finish_reason is None and self._num_received >= self.may_run_to:
                        self._finish_reason = PAUSED
                        return
                    grown.set()
                if self._finish_reason is None:
                    raise EngineError(f"the server ended a stream after {self._num_received} tokens without saying why")
                if self._lost_ids is not None:
                    decoded = token_counts(self._usage, self._num_received).decoded
                    self._lost_ids.ended(Piece("", [], [], None), decoded)
        except (WorkerError, NoOutputError) as error:
            self.error = error
            self._finish_reason = "error"
        except asyncio.CancelledError:  # nothing is left to do; the waiting caller sees the reason
            self._finish_reason = "cancelled"
        finally:
            self._ended = True
            grown.set()

    def _take(self, chunk: Any) -> None:
        self._usage = getattr(chunk, "usage", None) or self._usage
        for choice in getattr(chunk, "choices", None) or ():
            piece = read_piece(choice, self._flavor)
            piece = piece if self._lost_ids is None else self._lost_ids.restored(piece)
            _check_ids(piece, self._expects_ids)
            self._texts.append(self._whole.add(piece))
            if self._ids is not None:
                self._ids += piece.token_ids or ()
            self._logprobs += piece.logprobs
            self._calls += piece.calls
            num_new = bool(self._texts[-1]) if piece.token_ids is None else len(piece.token_ids)
            self._num_received += num_new
            self._connection.num_decoded += num_new
            if self._num_received > self._most_received:
                raise UnreadableAnswerError(
                    f"the server sent {self._num_received} tokens and goes on, though max_tokens is "
                    f"{self._body['max_tokens']}: check that it obeys max_tokens"
                )
            self._finish_reason = piece.finish_reason or self._finish_reason
            self._marks.append(_Mark(self._num_received, len(self._ids or ()), len(self._logprobs)))
            if self._is_piece and self._finish_reason == "length":
                self._finish_reason = PAUSED
            self._cut(len(piece.token_ids or ()))

    def _cut(self, num_new: int) -> None:
        """End the answer at the token that completes a stop string."""
        end = None if self._stops is None or not self._ids else self._stops.feed(self._ids, num_new)
        if end is not None and self._ids is not None:
            del self._ids[end:], self._logprobs[end:]
            self._finish_reason, self._is_cut = "stop", True

    def _answer(self, num_tokens: int = NEVER) -> Answer:
        """The answer so far, or only its first pieces, up to the one with token `num_tokens`."""
        ids, logprobs, texts = self._ids, self._logprobs, self._texts
        usage = self._usage if self._ended else None  # before, it may come with each piece, without cached tokens
        counts = token_counts(usage, self._num_received)
        reason = self._finish_reason if self._ended else None
        if num_tokens < self._num_received:
            last = bisect_left(self._marks, (num_tokens,))
            mark = self._marks[last]
            if mark.num_received < self._num_received:
                texts, logprobs, reason = texts[: last + 1], logprobs[: mark.num_logprobs], None
                ids = None if ids is None else ids[: mark.num_ids]
        uncounted = self._uncounted() if self._ended else None
        ids = None if ids is None else list(ids)
        return Answer("".join(texts), ids, list(logprobs), reason, counts, uncounted, self._calls)

    def _uncounted(self) -> str | None:
        if self._usage is None:
            return PROMPT if self._num_received else None
        return None if self._flavor.tells_reuse or tells_reuse(self._usage) else REUSE


class _Mark(NamedTuple):
    """Size of the answer after a piece."""

    num_received: int
    num_ids: int
    num_logprobs: int


def _check_ids(piece: Piece, expects_ids: bool) -> None:
    if expects_ids and (piece.text or piece.thinking) and piece.token_ids is None:
        raise EngineError(
            "the server returns no token ids, though servers of its flavor do. It may be an older release: set "
            "flavor='auto', which tests this, or another flavor, such as 'openai'"
        )


def fill(task: GenerationTask, answer: Answer, bodies: RequestBodies, seconds: float) -> None:
    """Write an answer to its task, `seconds` after the request was sent.

    Raises:
        EngineError: Log-probabilities were requested, but some tokens have none.
    """
    ids = answer.token_ids
    shown = ids is not None and not bodies.flavor.ids.with_text
    task.output_str = bodies.decode(ids) if ids is not None and shown else answer.text
    if (stops := bodies.stops(task)) is not None:
        task.output_str = stops.strings.cut(task.output_str)
    task.output_tokens = ids
    task.finish_reason = answer.finish_reason
    note(task, counts=answer.counts, uncounted=answer.uncounted, calls=joined_calls(answer.calls))
    if hasattr(task, "ttft_s"):  # missing in upstream's 1.2
        task.latency_s = seconds
        task.usage_prompt_tokens = answer.counts.prefilled + answer.counts.reused
        task.usage_completion_tokens = answer.counts.decoded
    if task.num_logprobs:
        task.logprobs = answer.logprobs
        if len(answer.logprobs) != len(ids or ()):
            raise EngineError(
                f"the server returned log-probabilities of {len(answer.logprobs)} of {len(ids or ())} tokens, though "
                f"num_logprobs is {task.num_logprobs}. It may be an older release: set flavor='auto', which tests this"
            )


class TaskStream:
    """One task's stream. The task holds the stream, so methods get the task instead of the stream holding it.

    `end_at` is a fixed number of tokens at which the stream ends with reason `PAUSED`.
    """

    def __init__(
        self,
        connection: Connection,
        path: str,
        bodies: RequestBodies,
        task: GenerationTask,
        end_at: int | None = None,
    ) -> None:
        body = bodies.generation(task, stream=True)
        self._is_piece = end_at is not None and end_at < body["max_tokens"]
        if self._is_piece and end_at is not None:
            body["max_tokens"] = end_at
        lost_ids, stops = bodies.lost_ids(task), bodies.stops(task)
        self._reader = StreamReader(
            connection, path, body, bodies.flavor, bodies.gives_ids, lost_ids, stops, self._is_piece, path == "chat"
        )
        self._connection = connection
        self._bodies = bodies
        self._started_at = time.monotonic()
        task.output_tokens = None

    def may_run_to(self, num_tokens: int) -> None:
        """Set the number of tokens at which the stream is closed, unless its end is fixed."""
        if not self._is_piece:
            self._reader.may_run_to = num_tokens

    async def advance(self, task: GenerationTask, num_tokens: int) -> bool:
        """Wait until the task has that many tokens or ends; return True if it has ended.

        Raises:
            WorkerError: The stream broke off.
            NoOutputError: It returned a log-probability that is not a number.
        """
        reader = self._reader
        first = task.output_str is None or task.output_tokens is None
        answer = await self._connection.run(reader.wait, num_tokens)
        if first:
            record_retries(reader.num_retries)
        fill(task, answer, self._bodies, time.monotonic() - self._started_at)
        if reader.error is not None:
            if answer.text:
                record("stream_lost", num_tokens=len(answer.token_ids or ()), error=str(reader.error))
            raise reader.error
        return answer.finish_reason is not None

    async def cancel(self, task: GenerationTask) -> bool:
        """Cancel the stream and keep its text so far. Return True if it has ended; an unstarted one has not."""
        answer = await self._connection.run(self._reader.cancel)
        fill(task, answer, self._bodies, time.monotonic() - self._started_at)
        return answer.finish_reason is not None

    async def close(self) -> None:
        """End the stream if it still runs, without changing its task."""
        if not self._reader.ended:
            await self._connection.run(self._reader.cancel)


def record_retries(num_retries: int) -> None:
    """Record in the trace how often a request was retried, if it was."""
    if num_retries:
        record("retried", worker="OpenAIWorker", num_retries=num_retries)
