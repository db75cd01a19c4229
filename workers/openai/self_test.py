"""Finds out what a server does right: the scores of a prompt, and going on with an unfinished turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scaffolding_ext.errors import InvalidTaskError, WorkerError
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.tasks import CONTINUED_TURNS, set_turn_start
from scaffolding_ext.workers.openai.connection import Connection
from scaffolding_ext.workers.openai.requests import RequestBodies
from scaffolding_ext.workers.openai.scores import scores_of

_PROMPT = "Start with 5. Add 3 to it, and then take half of the sum, which is"
_WORDS = " one two three four five six seven eight nine ten"
_NUM_TOKENS = 8
_NUM_TRIALS = 3
_TOLERANCE = 0.1  # nats: half-precision kernels differ by less between decoding and prefilling, neighbours by more


def refusals(connection: Connection, bodies: RequestBodies, chat: bool, tested: bool) -> dict[str, str]:
    """What a server cannot do that a stack may ask of it, and why.

    Args:
        connection: To the server.
        bodies: Makes the requests.
        chat: Whether they go to the chat endpoint.
        tested: Whether the server is tested, or its kind believed.

    Raises:
        EngineError: The server failed.
    """
    flavor, refused = bodies.flavor, {}
    if not bodies.gives_ids:  # positions in a stream are counted in token ids
        refused["StreamGenerationTask"] = f"servers of flavor {flavor.name!r} give no token ids"
    if chat:
        refused["ScoreTask"] = "a chat server scores no prompts; take endpoint='completions'"
    name, test, claimed = (
        (CONTINUED_TURNS, refused_turns, flavor.continue_turn is not None)
        if chat
        else ("ScoreTask", refused_scores, flavor.scores)
    )
    reason = connection.run_blocking(test, connection, bodies) if tested or not claimed else None
    return refused | ({name: reason} if reason else {})


async def refused_scores(connection: Connection, bodies: RequestBodies) -> str | None:
    """Why the server's scores cannot be trusted, or None where they can.

    The server draws some tokens and says how likely each was; then it scores the same tokens as a prompt. Both must
    agree token by token, and would not if either were shifted by one.
    """
    if not bodies.flavor.scores:
        return f"servers of flavor {bodies.flavor.name!r} give no log-probabilities of a prompt"
    try:
        found = await _found_wrong(connection, bodies)
    except WorkerError as error:  # a server may have to be started for them
        return f"the server failed when it was asked for the scores of a prompt: {error}"
    return None if found is None else f"the server's scores of a prompt are wrong: {found}"


async def _found_wrong(connection: Connection, bodies: RequestBodies) -> str | None:
    found = "they cannot be matched with what it drew"
    for seed in range(_NUM_TRIALS):
        prompt = bodies.encode(_PROMPT, True)
        task = GenerationTask(input_tokens=prompt, max_tokens=_NUM_TOKENS, temperature=1.0, seed=seed)
        body = {**bodies.generation(task, stream=False), "logprobs": 1}
        choice = (await connection.complete("completions", body, _choice)).value
        drawn = [float(value) for value in choice.logprobs.token_logprobs]
        ids = getattr(choice, "token_ids", None) or bodies.encode(choice.text, False)
        if not drawn or len(ids) != len(drawn):
            continue  # the text does not say which tokens were drawn
        try:
            scores = (await scores_of(connection, bodies, [*prompt, *ids], len(prompt))).value.values
        except InvalidTaskError:
            continue  # nor does the server take ids
        in_place = _distance(drawn, scores)
        early, late = _distance(drawn[1:], scores[:-1]), _distance(drawn[:-1], scores[1:])
        if in_place <= _TOLERANCE < min(early, late):
            return None
        found = f"they are {in_place:.2f} nats from what it said when it drew the same tokens"
        if min(early, late) <= _TOLERANCE < in_place:
            found = f"they come one token too {'early' if early <= late else 'late'}"
    return found


async def refused_turns(connection: Connection, bodies: RequestBodies) -> str | None:
    """Why the server cannot go on with an unfinished assistant turn, or None where it can.

    A server that closes the turn and opens another reads more prompt tokens than the same words cost in the user's
    turn.
    """
    if bodies.flavor.continue_turn is None:
        return f"chat servers of flavor {bodies.flavor.name!r} cannot go on with an unfinished answer"
    lengths = []
    for text, start in ((_PROMPT, None), (_PROMPT + _WORDS, len(_PROMPT)), (_PROMPT + _WORDS, None)):
        task = GenerationTask(input_str=text, max_tokens=1)
        if start is not None:
            set_turn_start(task, start)
        reply = await connection.complete("chat", bodies.generation(task, stream=False), lambda reply: reply)
        lengths.append(int(reply.value.usage.prompt_tokens))
    asked, opened, plain = lengths
    extra = (opened - asked) - (plain - asked)
    if abs(extra) <= 1:  # a token may join the words to what stands before them
        return None
    return f"the chat server does not go on with an unfinished answer: it read {extra} tokens more than were written"


def _choice(reply: Any) -> Any:
    return reply.choices[0]


def _distance(told: Sequence[float], scores: Sequence[float]) -> float:
    return max((abs(a - b) for a, b in zip(told, scores, strict=True)), default=0.0)
