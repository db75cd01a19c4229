"""Verdicts and rewards: P(yes) by the log-probabilities of two words, a reward model's scores by its logits."""

from __future__ import annotations

from typing import Any

from scaffolding_ext.errors import EngineError, InvalidTaskError
from scaffolding_ext.protocol import GenerationTask, RewardTask
from scaffolding_ext.protocol.branching import VerifyTask
from scaffolding_ext.protocol.lowering import lower_verify, probability_of_first, write_back_verify
from scaffolding_ext.protocol.notes import set_token_counts
from scaffolding_ext.protocol.tasks import REWARD
from scaffolding_ext.workers.openai.connection import Connection
from scaffolding_ext.workers.openai.requests import RequestBodies
from scaffolding_ext.workers.openai.responses import token_counts
from scaffolding_ext.workers.openai.stream import read_answer
from scaffolding_ext.workers.shared.lowered_requests import run_pieces


async def verify(connection: Connection, bodies: RequestBodies, task: VerifyTask) -> None:
    """Ask for P(yes) of each branch; it is exact where the release reports the log-probabilities of given tokens.

    Raises:
        EngineError: The server failed, or told too little.
        InvalidTaskError: The task cannot be served.
    """
    if task.layer_exit is not None:
        raise InvalidTaskError(f"layer_exit is {task.layer_exit}; a server reads only its last layer: leave it None")
    bodies.reader.verified(task)

    async def ask(piece: GenerationTask) -> None:
        body = bodies.verdict(piece, task)
        reply = await connection.complete("completions", body, lambda reply: read_answer(reply, bodies.flavor, True))
        piece.logprobs, piece.output_tokens = reply.value.logprobs, reply.value.token_ids
        set_token_counts(piece, reply.value.counts)

    pieces = lower_verify(task)
    await run_pieces(task, pieces, [ask(piece) for piece in pieces], decodes=False)
    write_back_verify(task, pieces)


async def reward(connection: Connection, bodies: RequestBodies, task: RewardTask) -> None:
    """Write a reward model's score of a text into the task's outputs.

    If the model has two classes, the score is the probability of the second class.

    Raises:
        EngineError: The server failed, or its model does not score.
        InvalidTaskError: There is no text.
    """

    def read(reply: Any) -> tuple[list[float], Any]:
        return last_logits(reply), getattr(reply, "usage", None)

    reply = await connection.complete("completions", bodies.logits(task), read)
    logits, usage = reply.value
    if len(logits) > 2:
        raise EngineError(
            f"the server gives {len(logits)} logits a token, so its model generates text and gives no rewards: serve "
            "a reward model"
        )
    score = logits[0] if len(logits) == 1 else probability_of_first(logits[1], logits[0])
    task.custom_output_params = {**(task.custom_output_params or {}), REWARD: score}
    set_token_counts(task, token_counts(usage, 0)._replace(decoded=0))


def last_logits(reply: Any) -> list[float]:
    """The logits of a prompt's last token, or those of the whole prompt if the model gives only these.

    Raises:
        EngineError: The server gave none.
    """
    logits = getattr(reply.choices[0], "context_logits", None)
    if not logits:
        raise EngineError(
            "the worker asked the server for the logits of a prompt, and the server gave none: serve a reward model"
        )
    return [float(value) for value in (logits[-1] if isinstance(logits[-1], list) else logits)]
