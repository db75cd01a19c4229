"""Scores of a prompt, and verdicts: P(yes) from the log-probabilities of two words."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.branching import VerifyTask
from scaffolding_ext.protocol.lowering import lower_verify, run_pieces, write_back_verify
from scaffolding_ext.protocol.meta import TokenCounts, meta_of, note
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.workers.openai.connection import Connection
from scaffolding_ext.workers.openai.requests import RequestBodies
from scaffolding_ext.workers.openai.responses import prompt_scores, token_counts
from scaffolding_ext.workers.openai.stream import read_answer


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
        counts = token_counts(getattr(reply, "usage", None), 0)
        return Scores([value for value in values[start:] if value is not None], counts._replace(decoded=0))

    return await connection.complete("completions", bodies.echo(prompt, task), read)


async def verify(connection: Connection, bodies: RequestBodies, task: VerifyTask) -> None:
    """Request P(yes) of each branch; exact if the release reports the log-probabilities of given tokens."""
    if task.layer_exit is not None:
        raise InvalidTaskError(f"layer_exit is {task.layer_exit}; a server reads only its last layer: leave it None")
    bodies.reader.verified(task)

    async def ask(piece: GenerationTask) -> None:
        body = bodies.verdict(piece, task)
        answer = await connection.complete("completions", body, functools.partial(read_answer, bodies, piece))
        answer.fill(piece)
        note(task, uncounted=answer.uncounted or meta_of(task).uncounted)

    pieces = lower_verify(task)
    await run_pieces(task, pieces, [ask(piece) for piece in pieces], decodes=False)
    write_back_verify(task, pieces)
