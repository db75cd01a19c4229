"""Tests of a server's abilities: ids and log-probabilities, scores of a prompt, unfinished turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scaffolding_ext.errors import ConfigError, InvalidTaskError, MissingDependencyError, WorkerError
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.branching import LAYER_EXIT, SIMILARITY_GATE
from scaffolding_ext.protocol.meta import CONTINUED_TURNS, note
from scaffolding_ext.workers.openai.connection import Connection
from scaffolding_ext.workers.openai.fields import field, texts_of
from scaffolding_ext.workers.openai.flavors import Flavor
from scaffolding_ext.workers.openai.requests import RequestBodies
from scaffolding_ext.workers.openai.responses import GrowingAnswer, tells_reuse
from scaffolding_ext.workers.openai.stream import scores_of

_PROMPT = "Start with 5. Add 3 to it, and then take half of the sum, which is"
_WORDS = " one two three four five six seven eight nine ten"
_NUM_TOKENS = 24
_NUM_TRIALS = 3
_REUSED_TOKENS = 300  # more than two blocks of 128 tokens
_INSTEAD = (
    "use endpoint: completions with the model's tokenizer, a server that continues an assistant message (vLLM, "
    "SGLang, llama-server), or a controller that requests whole answers, such as a vote"
)
_LEAST_RATIO = 3.0  # of the mean differences of shifted scores to those in place


class Proven(NamedTuple):
    """A release's abilities: its kind's flavor without those that it `refused`, with reasons."""

    flavor: Flavor
    refused: Mapping[str, str]


async def proven(connection: Connection, flavor: Flavor, model: str) -> Proven:
    """Request one token with its id and log-probability, which not all releases return."""
    if flavor.ids.ask is None or flavor.ids.loses:  # the first token's id may be lost
        return Proven(flavor, {})
    refused = {}
    plain = {"model": model, "prompt": _PROMPT, "max_tokens": 1, "temperature": 0.0, **flavor.ids.ask}
    asked = {**plain, flavor.logprobs.field: 1, **flavor.logprobs.by_ids}
    piece = await _piece(connection, flavor, asked)
    if isinstance(piece, str) or not piece.logprobs:
        refused["num_logprobs"] = (
            piece if isinstance(piece, str) else "the server returns no log-probabilities beside token ids"
        )
        flavor = flavor._replace(logprobs=flavor.logprobs._replace(most=0))
        piece = await _piece(connection, flavor, plain)
    if isinstance(piece, str) or not piece.token_ids:
        flavor = flavor._replace(ids=flavor.ids._replace(ask=None))
        refused["StreamGenerationTask"] = (
            piece if isinstance(piece, str) else "this release of the server returns no token ids"
        )
    return Proven(flavor, refused)


async def _piece(connection: Connection, flavor: Flavor, body: Mapping[str, Any]) -> GrowingAnswer | str:
    """The server's answer, or the reason for its absence."""
    growing = GrowingAnswer(flavor, expects_ids=False)
    try:
        await connection.complete("completions", body, growing.add)
    except WorkerError as error:
        return str(error)
    return growing


async def tells_cached_tokens(
    connection: Connection, flavor: Flavor, model: str, max_seq_len: int | None, chat: bool
) -> bool:
    """Return True if the server tells how many tokens of a prompt it took from its cache, shown by the same one twice.

    vLLM and SGLang tell it only with an option, and then only if there are some.
    """
    room = _REUSED_TOKENS if max_seq_len is None else min(_REUSED_TOKENS, max_seq_len // 2)
    text = " ".join(str(number % 10) for number in range(room))  # about one token a digit
    prompt = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    body = {"model": model, **prompt, "max_tokens": 1, "temperature": 0.0}
    for _ in range(2):
        try:
            reply = await connection.complete("chat" if chat else "completions", body, lambda reply: reply)
        except WorkerError:  # it may be too long for the server; its answers are read as if they told nothing
            return False
        if tells_reuse(field(reply, "usage")):
            return True
    return False


async def refused_priority(connection: Connection, flavor: Flavor, model: str, chat: bool) -> str | None:
    """Reason why the server refuses a request with a priority, or None if it takes one."""
    if flavor.priority is None:
        return None  # `RequestBodies` refuses it
    prompt = {"messages": [{"role": "user", "content": _PROMPT}]} if chat else {"prompt": _PROMPT}
    body = {"model": model, **prompt, "max_tokens": 1, "priority": flavor.priority(-1)}
    try:
        await connection.complete("chat" if chat else "completions", body, lambda reply: reply)
    except WorkerError as error:
        return str(error)
    return None


async def separates_thinking(connection: Connection, flavor: Flavor, model: str) -> bool:
    """Return True if the beginning of a chat's answer comes as thinking, apart from its text."""
    message = {"role": "user", "content": _PROMPT}
    body = {"model": model, "messages": [message], "max_tokens": 16, **flavor.chat.neutral}
    try:
        reply = await connection.complete("chat", body, lambda reply: texts_of(_choice(reply)["message"]))
    except WorkerError:  # it refuses the request, and may serve others
        return False
    return bool(reply.thinking)


def refusals(connection: Connection, bodies: RequestBodies, chat: bool, tested: bool) -> dict[str, str]:
    """Abilities that a stack may need and this server lacks, with reasons.

    If the server is not `tested`, its flavor's table is trusted.
    """
    flavor = bodies.flavor
    refused = {
        LAYER_EXIT: "a server returns only the logits of its last layer; leave out layer_exit",
        SIMILARITY_GATE: "a server returns no hidden states; leave out least_similarity",
    }
    if not bodies.gives_ids:  # positions in a stream are counted in token ids
        refused["StreamGenerationTask"] = f"servers of flavor {flavor.name!r} return no token ids"
    if chat:
        refused["ScoreTask"] = "a chat server scores no prompts; set endpoint='completions'"
    name, test, claimed = (
        (CONTINUED_TURNS, refused_turns, flavor.chat.continue_turn is not None)
        if chat
        else ("ScoreTask", refused_scores, flavor.scores.are_echoed)
    )
    reason = connection.run_blocking(test, connection, bodies) if tested or not claimed else None
    return refused | ({name: reason} if reason else {})


async def refused_scores(connection: Connection, bodies: RequestBodies) -> str | None:
    """Reason why the server's scores cannot be trusted, or None if they can.

    The server draws some tokens and reports their log-probabilities; then it scores the same tokens as a prompt. Both
    must agree better than if they were shifted by a token.
    """
    if not bodies.flavor.scores.are_echoed:
        return f"servers of flavor {bodies.flavor.name!r} return no log-probabilities of a prompt"
    try:
        bodies.encode(_PROMPT, True)
    except (ConfigError, MissingDependencyError) as error:  # the server's name for its model is not a tokenizer's
        return f"scores need the model's tokenizer, which cannot be loaded; set `tokenizer`: it {error}"
    try:
        found = await _found_wrong(connection, bodies)
    except WorkerError as error:  # some servers return scores only if started with an option
        return f"the server failed when the worker requested the scores of a prompt: {error}"
    return None if found is None else f"the server's scores of a prompt are wrong: {found}"


async def _found_wrong(connection: Connection, bodies: RequestBodies) -> str | None:
    """Compare scores with the log-probabilities of the same tokens when they were drawn, in place and shifted by one.

    Two correct computations of a model in half precision differ by up to 0.15 nats a token, so only the ratio of the
    mean differences decides.
    """
    in_place, early, late = list[float](), list[float](), list[float]()
    for seed in range(_NUM_TRIALS):
        prompt = bodies.encode(_PROMPT, True)
        task = GenerationTask(input_tokens=prompt, max_tokens=_NUM_TOKENS, temperature=1.0, seed=seed)
        body = {**bodies.generation(task, stream=False), "logprobs": 1}
        choice = await connection.complete("completions", body, _choice)
        drawn = [float(value) for value in choice["logprobs"]["token_logprobs"]]
        ids = field(choice, "token_ids") or bodies.encode(choice["text"], False)
        if not drawn or len(ids) != len(drawn):
            continue  # the text does not determine the drawn tokens
        try:
            scores = (await scores_of(connection, bodies, [*prompt, *ids], len(prompt))).values
        except InvalidTaskError:
            continue  # the server takes no ids
        in_place += _differences(drawn, scores)
        early += _differences(drawn[1:], scores[:-1])
        late += _differences(drawn[:-1], scores[1:])
    if not early:
        return "they cannot be matched with the tokens that it drew"
    here, before, behind = (sum(each) / len(each) for each in (in_place, early, late))
    if here * _LEAST_RATIO < min(before, behind):
        return None
    if min(before, behind) * _LEAST_RATIO < here:
        return f"they come one token too {'early' if before <= behind else 'late'}"
    return (
        f"they differ by {here:.2f} nats on average from the log-probabilities reported when the same tokens were "
        f"drawn, and by {min(before, behind):.2f} if shifted by a token"
    )


async def refused_turns(connection: Connection, bodies: RequestBodies) -> str | None:
    """Reason why the server cannot continue an unfinished assistant turn, or None if it can.

    The same words are sent in the user's turn and in an unfinished assistant turn. A server that closes the assistant
    turn and opens another one reads more prompt tokens.
    """
    if bodies.flavor.chat.continue_turn is None:
        return f"chat servers of flavor {bodies.flavor.name!r} cannot continue an unfinished answer: {_INSTEAD}"
    lengths = []
    for text, start in ((_PROMPT, None), (_PROMPT + _WORDS, len(_PROMPT)), (_PROMPT + _WORDS, None)):
        task = GenerationTask(input_str=text, max_tokens=1)
        if start is not None:
            note(task, turn_start=start)
        reply = await connection.complete("chat", bodies.generation(task, stream=False), lambda reply: reply)
        lengths.append(int(reply["usage"]["prompt_tokens"]))
    asked, opened, plain = lengths
    extra = (opened - asked) - (plain - asked)
    if abs(extra) <= 1:  # one token may span the first word and the text before it
        return None
    if extra < 0:
        return (
            f"the chat template drops part of an unfinished answer (the server read {-extra} tokens fewer than the "
            "worker sent): set tokenizer to the model's, and endpoint to completions"
        )
    return (
        f"the chat server does not continue an unfinished answer (it read {extra} more tokens than the worker sent): "
        f"{_INSTEAD}"
    )


def _choice(reply: Any) -> Any:
    return reply["choices"][0]


def _differences(told: Sequence[float], scores: Sequence[float]) -> list[float]:
    return [abs(a - b) for a, b in zip(told, scores, strict=True)]
