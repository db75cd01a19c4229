"""Answers of a server, whole or streamed, and its scores of a prompt."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from typing import Any, NamedTuple

from scaffolding_ext.errors import EngineError, NoOutputError, WorkerError
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.meta import PAUSED, TokenCounts, meta_of
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.request.program import record
from scaffolding_ext.workers.openai.connection import Connection
from scaffolding_ext.workers.openai.fields import UnreadableAnswerError, field, joined_calls
from scaffolding_ext.workers.openai.requests import RequestBodies
from scaffolding_ext.workers.openai.responses import GrowingAnswer, prompt_scores, token_counts
from scaffolding_ext.workers.shared.streaming import NEVER, Answer, Stream


class ServerStream(Stream):
    """One streamed answer, read in the background, so the connection never waits for its reader.

    A server cannot pause it, so it is closed at its limit; tokens that come later are dropped.
    An answer of a chat ends with the piece that has the last requested token, even if more has arrived: its reader has
    no tokenizer, and cannot cut it.

    Args:
        connection: Connection to the server.
        path: `"completions"` or `"chat"`.
        bodies: Builds the request.
        task: Its task, which is not kept.
        end_at: A fixed number of tokens at which it ends with reason `PAUSED`; None is the task's budget.
    """

    def __init__(
        self, connection: Connection, path: str, bodies: RequestBodies, task: GenerationTask, end_at: int | None = None
    ) -> None:
        self._body = bodies.generation(task, stream=True)
        most = self._body.get("max_tokens", NEVER)
        self._is_piece = end_at is not None and end_at < most
        if self._is_piece:
            self._body["max_tokens"] = most = end_at
        self._most_received = 2 * most + 64  # speculation may overshoot, and some count no thinking
        self._connection, self._path, self._bodies = connection, path, bodies
        self._stops, self._num_logprobs = bodies.stops(task), task.num_logprobs
        self._growing = growing_answer(bodies, task)
        self._may_run_to = NEVER
        self._is_cut = self._ended = False
        self._error: WorkerError | NoOutputError | None = None
        self._marks: list[_Mark] = []  # of a chat
        self._awaited = 0
        self._started_at = time.monotonic()
        self._grown: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def counts(self) -> TokenCounts:
        return self._growing.counts

    def let_run_to(self, num_tokens: int) -> None:
        if not self._is_piece:
            self._may_run_to = num_tokens

    async def wait(self, num_tokens: int) -> Answer:
        """Wait for that many tokens (pieces, if the server returns no ids) or the end."""
        return await self._connection.run(self._wait, num_tokens)

    async def cancel(self) -> Answer:
        """Close the connection, which stops the server, and return the answer so far."""
        return await self._connection.run(self._cancel)

    async def close(self) -> None:
        if self._task is not None and not self._ended:
            await self._connection.run(self._cancel)

    # ---- on the connection's loop

    async def _wait(self, num_tokens: int) -> Answer:
        if self._task is None:
            self._grown = asyncio.Event()
            self._task = asyncio.ensure_future(self._read(self._grown))
        self._awaited = num_tokens
        while not self._ended and self._growing.num_received < num_tokens and self._grown is not None:
            self._grown.clear()
            await self._grown.wait()
        return self._answer(num_tokens if self._path == "chat" else NEVER)

    async def _cancel(self) -> Answer:
        if self._task is not None and not self._ended:
            self._task.cancel()
            await asyncio.wait([self._task])
        return self._answer()

    async def _read(self, grown: asyncio.Event) -> None:
        growing = self._growing
        try:
            async with self._connection.stream(self._path, self._body) as pieces:
                async for piece in pieces:
                    self._take(piece)
                    if self._is_cut:
                        return
                    if growing.finish_reason is None and growing.num_received >= self._may_run_to:
                        growing.finish_reason = PAUSED
                        return
                    if growing.num_received >= self._awaited:
                        grown.set()
                growing.end()
        except (WorkerError, NoOutputError) as error:
            self._error, growing.finish_reason = error, "error"
            if growing.num_received:
                record("stream_lost", num_tokens=len(growing.token_ids or ()), error=str(error))
        except asyncio.CancelledError:  # nothing is left to do; the waiting caller sees the reason
            growing.finish_reason = "cancelled"
        finally:
            self._ended = True
            grown.set()

    def _take(self, piece: Any) -> None:
        growing = self._growing
        num_new = growing.add(piece)
        self._connection.num_decoded += num_new
        if growing.num_received > self._most_received:
            raise UnreadableAnswerError(
                f"the server sent {growing.num_received} tokens and goes on, though max_tokens is "
                f"{self._body.get('max_tokens')}: check that it obeys max_tokens"
            )
        if self._is_piece and growing.finish_reason == "length":
            growing.finish_reason = PAUSED
        ids = growing.token_ids
        end = None if self._stops is None or not ids else self._stops.feed(ids, num_new)
        if end is not None and ids is not None:  # at the token that completes a stop string
            del ids[end:], growing.logprobs[end:]
            growing.finish_reason, self._is_cut = "stop", True
        if self._path == "chat":
            self._marks.append(_Mark(growing.num_received, len(growing.texts), len(ids or ()), len(growing.logprobs)))

    def _answer(self, num_tokens: int = NEVER) -> Answer:
        """The answer so far, or only its first pieces, up to the one with token `num_tokens`."""
        growing = self._growing
        ids, logprobs, texts = growing.token_ids, growing.logprobs, growing.texts
        reason = growing.finish_reason if self._ended else None
        # Before the end, usage may come with each piece, without cached tokens.
        counts = growing.counts if self._ended else TokenCounts(growing.num_received)
        if num_tokens < growing.num_received:
            mark = self._marks[bisect_left(self._marks, (num_tokens,))]
            if mark.num_received < growing.num_received:
                texts, logprobs, reason = texts[: mark.num_texts], logprobs[: mark.num_logprobs], None
                ids = None if ids is None else ids[: mark.num_ids]
        answer = Answer(
            "".join(texts),
            None if ids is None else list(ids),
            reason,
            counts,
            list(logprobs) if self._num_logprobs else None,
            uncounted=growing.uncounted if self._ended else None,
            calls=joined_calls(growing.calls),
            error=self._error if reason else None,
            latency_s=time.monotonic() - self._started_at,
        )
        return answer if self._error is not None else checked(answer, self._bodies, self._stops, self._num_logprobs)


def growing_answer(bodies: RequestBodies, task: GenerationTask) -> GrowingAnswer:
    is_continued = meta_of(task).turn_start is not None
    return GrowingAnswer(bodies.flavor, bodies.gives_ids, bodies.lost_ids(task), is_continued)


def read_answer(bodies: RequestBodies, task: GenerationTask, reply: Any) -> Answer:
    """Read a task's whole answer."""
    growing, stops = growing_answer(bodies, task), bodies.stops(task)
    growing.add(reply)
    growing.end()
    answer = Answer(
        "".join(growing.texts),
        growing.token_ids,
        growing.finish_reason,
        growing.counts,
        growing.logprobs if task.num_logprobs else None,
        uncounted=growing.uncounted,
        calls=joined_calls(growing.calls),
    )
    return checked(answer, bodies, stops, task.num_logprobs)


class Scores(NamedTuple):
    """A server's scores of a prompt: log-probabilities in nats, and the cost.

    No decoded token is counted: the token that the server additionally draws needs no forward pass.
    """

    values: list[float]
    counts: TokenCounts


async def scores_of(
    connection: Connection, bodies: RequestBodies, prompt: list[int], start: int, task: ScoreTask | None = None
) -> Scores:
    """Score the tokens of a prompt from index `start`; `task` adds its hints.

    Raises:
        EngineError: The server failed or returned too little.
        InvalidTaskError: It refuses the prompt.
    """

    def read(reply: Any) -> Scores:
        values = prompt_scores(reply, len(prompt))
        counts = token_counts(field(reply, "usage"), 0)
        return Scores([value for value in values[start:] if value is not None], counts._replace(decoded=0))

    return await connection.complete("completions", bodies.echo(prompt, task), read)


class _Mark(NamedTuple):
    """Size of the answer after a piece."""

    num_received: int
    num_texts: int
    num_ids: int
    num_logprobs: int


def checked(answer: Answer, bodies: RequestBodies, stops: Any, num_logprobs: int | None) -> Answer:
    """Return an answer with the text of its ids, if the server sends only these, and before its stop string.

    Raises:
        EngineError: Log-probabilities were requested, but some tokens have none.
    """
    ids, logprobs = answer.token_ids or [], answer.logprobs or []
    if num_logprobs and len(logprobs) != len(ids):
        raise EngineError(
            f"the server returned log-probabilities of {len(logprobs)} of {len(ids)} tokens, though num_logprobs is "
            f"{num_logprobs}. It may be an older release: set flavor='auto', which tests this"
        )
    if answer.token_ids is not None and not bodies.flavor.ids.with_text:
        answer = answer._replace(text=bodies.decode(ids))
    return answer if stops is None else answer._replace(text=stops.strings.cut(answer.text))
