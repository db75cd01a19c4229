"""Requests and answers of the test double of an OpenAI-compatible server, in the shape of each kind of server.

llama.cpp's servers differ from the others. The double does what the real servers were seen to do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.meta import TokenCounts, token_counts_of
from scaffolding_ext.protocol.tasks import ScoreTask
from tests.servers.releases import Release

_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"
_UNREADABLE = "\ufffd"  # ends decoded text whose last character is not whole


class Told(NamedTuple):
    """The state of a stream so far.

    Attributes:
        num_ids: Token ids.
        num_characters: Characters of its text. Where a reasoning parser reads the text, characters behind the thinking.
        num_thinking: Characters of the thinking that a reasoning parser has told apart.
    """

    num_ids: int = 0
    num_characters: int = 0
    num_thinking: int = 0


class Shape:
    """Reads requests and writes answers as one kind of server.

    Args:
        release: Which server it is.
        encode: Token ids of a text, for what only takes text.
        decode: Text of token ids, for the llama.cpp shapes.
        keeps_turns_open: Whether a chat goes on with an unfinished assistant turn.
        bos: Token that it puts before every text.
    """

    def __init__(
        self,
        release: Release,
        encode: Callable[[str], list[int]],
        decode: Callable[[list[int]], str],
        keeps_turns_open: bool,
        bos: int | None,
    ) -> None:
        self._release = release
        self._flavor = release.flavor
        self._encode = encode
        self._decode = decode
        self._keeps_turns_open = keeps_turns_open
        self._first = [] if bos is None else [bos]

    def prompt(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """A request's prompt as fields of a task; a chat's turns are put together without any template.

        Raises:
            InvalidTaskError: The server takes no token ids.
        """
        if "messages" not in body:
            return self._given(body["prompt"])
        turns = [message["content"] for message in body["messages"]]
        is_open = len(turns) > 1 and self._keeps_turns_open
        return {"input_str": "".join(turns) + ("" if is_open or len(turns) == 1 else "\n<|turn|>\n")}

    def _given(self, prompt: str | list[int]) -> dict[str, Any]:
        if isinstance(prompt, str) and self._first:
            return {"input_tokens": [*self._first, *self._encode(prompt)]}
        if isinstance(prompt, str):
            return {"input_str": prompt}
        return {"input_tokens": prompt}

    def scored(self, body: Mapping[str, Any]) -> ScoreTask:
        """The task of a request that echoes its prompt."""
        fields = self._given(body["prompt"])
        ids = fields.get("input_tokens") or self._encode(fields["input_str"])
        return ScoreTask(input_tokens=ids[:1], continuation_tokens=ids[1:])

    def scores(self, task: ScoreTask, body: Mapping[str, Any], fault: str | None) -> dict[str, Any]:
        """The answer with the scores of that task; `"early"` and `"late"` shift them by a token."""
        ids = [*(task.input_tokens or ()), *(task.continuation_tokens or ())]
        values: list[float | None] = [None, *(task.logprobs or ())]
        if fault == "early":
            values = [*values[1:], values[-1]]
        if fault == "late":
            values = [None, values[1], *values[1:-1]]
        counts = usage(token_counts_of(task))
        num_drawn = body["max_tokens"]
        if num_drawn:
            counts["completion_tokens"] = num_drawn
            values += [-1.0] * num_drawn
        logprobs = {"token_logprobs": values, "tokens": [f"token_id:{token}" for token in ids], "top_logprobs": None}
        choice = {"index": 0, "text": "", "logprobs": logprobs, "finish_reason": "length"}
        return {"object": "text_completion", "choices": [choice], "usage": counts}

    def choice(self, task: GenerationTask, body: Mapping[str, Any], told: Told) -> tuple[dict[str, Any], Told]:
        """The new part of a task's output, and all that has been told with it."""
        ids, text = task.output_tokens or [], task.output_str or ""
        if self._flavor == "llama_cpp" and body.get("stream"):
            ids, text = self._whole_characters(ids, text)
        field = self._release.thinking_field(body)
        thinking, text = ("", text) if field is None else _taken_apart(text)
        told_now = Told(len(ids), len(text), len(thinking))
        ids, text, steps = ids[told.num_ids :], text[told.num_characters :], (task.logprobs or [])[told.num_ids :]
        choice: dict[str, Any] = {"index": 0, "finish_reason": task.finish_reason}
        if self._flavor == "llama_cpp" and num_logprobs(body):
            choice["logprobs"] = {"content": self._entries(ids, steps, body)}
        elif num_logprobs(body) and steps:
            choice["logprobs"] = self._logprobs(ids, steps, body)
        if self._release.gives_ids(body):
            choice["token_ids"] = ids
        text = "" if body.get("detokenize") is False else text
        if "messages" not in body:
            return choice | {"text": text}, told_now
        if not told.num_characters:
            text = self._told_again(body) + text
        told_apart = {} if field is None else {field: thinking[told.num_thinking :] or None}
        name = "delta" if body.get("stream") else "message"
        message = {"role": "assistant", "content": text, **told_apart}
        if body.get("tools") and (task.output_str or "").startswith("["):
            message |= {"content": None, "tool_calls": _calls(task.output_str or "", bool(body.get("stream")))}
        return choice | {name: message}, told_now

    def _logprobs(self, ids: list[int], steps: list[dict[int, Any]], body: Mapping[str, Any]) -> dict[str, Any]:
        """Log-probabilities of completions or of chats. A chat lists the drawn token first, and then is cut."""
        given, most = self._release.given_tokens(body), num_logprobs(body)
        by_ids = self._release.names_tokens_by_ids(body)
        told = []
        for token, step in zip(ids, steps, strict=True):
            tops = [name for name in (given or step) if name != token]
            tops = [token, *sorted(tops, key=lambda name, step=step: -step[name].logprob)]  # type: ignore[misc]
            tops = tops if given or "messages" not in body else tops[:most]
            told.append([(f"token_id:{name}" if by_ids else self._decode([name]), step[name].logprob) for name in tops])
        if "messages" not in body:
            drawn, values = zip(*(tops[0] for tops in told), strict=True)
            return {"tokens": drawn, "token_logprobs": values, "top_logprobs": [dict(tops) for tops in told]}
        entries = [[{"token": name, "logprob": value} for name, value in tops] for tops in told]
        return {"content": [{**tops[0], "top_logprobs": tops} for tops in entries]}

    def _whole_characters(self, ids: list[int], text: str) -> tuple[list[int], str]:
        """The tokens without those at the end that are no whole character yet."""
        num_ids = len(ids)
        while num_ids and self._decode(ids[:num_ids]).endswith(_UNREADABLE):
            num_ids -= 1
        return ids[:num_ids], text if num_ids == len(ids) else text.rstrip(_UNREADABLE)

    def _entries(self, ids: list[int], steps: list[dict[int, Any]], body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """llama-server's log-probabilities: none for a token that ends inside a character."""
        entries, held = [], []
        for token, step in zip(ids, steps, strict=False):
            held.append(token)
            text = self._decode(held)
            if text.endswith(_UNREADABLE):
                continue
            held = []
            tops = [{"id": name, "token": self._decode([name]), "logprob": top.logprob} for name, top in step.items()]
            entries.append({"id": token, "token": text, "logprob": step[token].logprob, "top_logprobs": tops})
        at_a_stop_string = body.get("stop") and ids and self._decode(ids[-1:]) and len(ids) < body["max_tokens"]
        return entries[:-1] if at_a_stop_string and not body.get("stream") else entries

    def _told_again(self, body: Mapping[str, Any]) -> str:
        """The unfinished turn. llama-server begins an answer with it, unless a stream asks it not to."""
        if self._flavor != "llama_cpp" or len(body["messages"]) < 2 or not self._keeps_turns_open:
            return ""
        is_told_not_to = body.get("stream") and body.get("continue_final_message")
        return "" if is_told_not_to else str(body["messages"][-1]["content"])


def _calls(text: str, streams: bool) -> list[dict[str, Any]]:
    """The tool calls that a text lists in JSON, once it is whole; a stream tells the arguments in pieces."""
    try:
        calls = json.loads(text)
    except ValueError:
        return []
    found: list[dict[str, Any]] = []
    for index, call in enumerate(calls):
        arguments = json.dumps(call["arguments"])
        half = len(arguments) // 2 if streams else len(arguments)
        function = {"name": call["name"], "arguments": arguments[:half]}
        found.append({"id": f"call-{index}", "type": "function", "function": function})
        if streams:
            found[-1]["index"] = index
            found.append({"index": index, "function": {"arguments": arguments[half:]}})
    return found


def _taken_apart(text: str) -> tuple[str, str]:
    """The thinking and the rest, without marks. What may be the beginning of a mark is held back."""
    thinking, _, rest = text.removeprefix(_THINK_OPEN).partition(_THINK_CLOSE)
    for mark in (_THINK_OPEN, _THINK_CLOSE):
        num_held = next((end for end in range(len(mark) - 1, 0, -1) if text.endswith(mark[:end])), 0)
        thinking = thinking if rest or not num_held else thinking.removesuffix(mark[:num_held])
    return thinking, rest


def num_logprobs(body: Mapping[str, Any]) -> int | None:
    """Return the number of log-probabilities a token that a request asks for."""
    if body.get("logprobs") is True:
        return int(body.get("top_logprobs") or 1)
    return body.get("logprobs") or body.get("n_probs")


def usage(counts: TokenCounts | None, tells_reuse: bool = True) -> dict[str, Any]:
    """Token counts, as servers tell them."""
    decoded, prefilled, reused = counts or TokenCounts()
    found: dict[str, Any] = {"prompt_tokens": prefilled + reused, "completion_tokens": decoded}
    found["total_tokens"] = decoded + prefilled + reused
    return found | ({"prompt_tokens_details": {"cached_tokens": reused}} if tells_reuse else {})
