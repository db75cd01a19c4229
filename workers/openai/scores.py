"""The log-probabilities of a prompt's own tokens, from a server that echoes it."""

from __future__ import annotations

from typing import Any, NamedTuple

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.protocol.notes import TokenCounts
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.workers.openai.connection import Connection, Reply
from scaffolding_ext.workers.openai.requests import RequestBodies
from scaffolding_ext.workers.openai.responses import prompt_scores, token_counts


class Scores(NamedTuple):
    """What a server says of a prompt.

    Attributes:
        values: Log-probability of each token that was asked for, in nats.
        counts: The cost. No decoded token is counted: the token that the server draws in addition takes no pass of the
            model.
    """

    values: list[float]
    counts: TokenCounts


async def scores_of(
    connection: Connection, bodies: RequestBodies, prompt: list[int], start: int, task: ScoreTask | None = None
) -> Reply[Scores]:
    """Score the tokens of a prompt from one on.

    Args:
        connection: To the server.
        bodies: Makes the request.
        prompt: Its token ids.
        start: Index of the first token that is scored.
        task: The task that asks for the scores; None where there is none.

    Raises:
        EngineError: The server failed, or told too little.
        InvalidTaskError: It takes no such prompt, or has no score for the token at `start`.
    """
    num_hidden = bodies.num_hidden(prompt)
    if num_hidden > 0 and start <= num_hidden:
        raise InvalidTaskError(
            f"the task asks for the score of token {start}, and servers of flavor {bodies.flavor.name!r} give no "
            f"score before token {num_hidden + 1}, since they add the first tokens themselves: begin the continuation "
            "later"
        )

    def read(reply: Any) -> Scores:
        values = prompt_scores(reply, len(prompt), num_hidden, from_text=not bodies.flavor.ids.in_prompts)
        counts = token_counts(getattr(reply, "usage", None), 0)
        return Scores([value for value in values[start:] if value is not None], counts._replace(decoded=0))

    return await connection.complete("completions", bodies.echo(prompt, task), read)
