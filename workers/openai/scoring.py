"""Verdicts and rewards: P(yes) from the log-probabilities of two words, a reward model's scores from its logits."""

from __future__ import annotations

from typing import Any, NamedTuple

from scaffolding_ext.errors import EngineError, InvalidTaskError
from scaffolding_ext.protocol import GenerationTask, RewardTask
from scaffolding_ext.protocol.branching import VerifyTask
from scaffolding_ext.protocol.lowering import lower_verify, probability_of_first, run_pieces, write_back_verify
from scaffolding_ext.protocol.meta import TokenCounts, meta_of, note
from scaffolding_ext.protocol.tasks import REWARD, ScoreTask
from scaffolding_ext.workers.openai.connection import Connection, Reply
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
) -> Reply[Scores]:
    """Score the tokens of a prompt from index `start`; `task` adds its hints.

    Raises:
        EngineError: The server failed or returned too little.
        InvalidTaskError: It refuses the prompt, or has no score for the token at `start`.
    """
    num_hidden = bodies.num_hidden(prompt)
    if num_hidden > 0 and start <= num_hidden:
        raise InvalidTaskError(
            f"the task requests the score of token {start}, but servers of flavor {bodies.flavor.name!r} return no "
            f"score before token {num_hidden + 1}, since they add the first tokens themselves: begin the continuation "
            "later"
        )

    def read(reply: Any) -> Scores:
        values = prompt_scores(reply, len(prompt), num_hidden, from_text=not bodies.flavor.ids.in_prompts)
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
        reply = await connection.complete("completions", body, lambda reply: read_answer(reply, bodies.flavor, True))
        piece.logprobs, piece.output_tokens = reply.value.logprobs, reply.value.token_ids
        note(piece, counts=reply.value.counts)
        note(task, uncounted=reply.value.uncounted or meta_of(task).uncounted)

    pieces = lower_verify(task)
    await run_pieces(task, pieces, [ask(piece) for piece in pieces], decodes=False)
    write_back_verify(task, pieces)


async def reward(connection: Connection, bodies: RequestBodies, task: RewardTask) -> None:
    """Write a reward model's score of a text to the task's outputs; with two classes, the second's probability.

    Raises:
        EngineError: The server failed, or its model is not a reward model.
        InvalidTaskError: There is no text.
    """

    def read(reply: Any) -> tuple[list[float], Any]:
        return last_logits(reply), getattr(reply, "usage", None)

    reply = await connection.complete("completions", bodies.logits(task), read)
    logits, usage = reply.value
    if len(logits) > 2:
        raise EngineError(
            f"the server returns {len(logits)} logits per token, so its model generates text instead of rewards: serve "
            "a reward model"
        )
    score = logits[0] if len(logits) == 1 else probability_of_first(logits[1], logits[0])
    task.custom_output_params = {**(task.custom_output_params or {}), REWARD: score}
    note(task, counts=token_counts(usage, 0)._replace(decoded=0))


def last_logits(reply: Any) -> list[float]:
    """Logits of a prompt's last token, or of the whole prompt if the model returns only those."""
    logits = getattr(reply.choices[0], "context_logits", None)
    if not logits:
        raise EngineError(
            "the worker requested the logits of a prompt, but the server returned none: serve a reward model"
        )
    return [float(value) for value in (logits[-1] if isinstance(logits[-1], list) else logits)]
