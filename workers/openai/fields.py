"""Fields of a server's answer: each has known types and values, and any other is an error that quotes it."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from scaffolding_ext.errors import EngineError
from scaffolding_ext.protocol.meta import ToolCall

_ENDS = {  # in lower case
    "stop": (
        *("stop", "eos", "eos_token", "stop_token", "stop_sequence", "stop_str", "end_turn"),
        *("tool_calls", "tool_use", "function_call"),
    ),
    "length": ("length", "max_tokens", "max_output_tokens", "model_length", "repetition"),
}
_REASONS = {name: ours for ours, names in _ENDS.items() for name in names}
_FILTERED = frozenset({"content_filter", "safety", "sensitive", "refusal", "recitation"})
_FAILED = frozenset({"abort", "cancelled", "error", "network_error", "insufficient_system_resource"})
_THINKING = ("reasoning", "reasoning_content")  # vLLM renamed it; SGLang and trtllm-serve use the older name


class UnreadableAnswerError(EngineError):
    """An answer that cannot be read, or was filtered for its content; the server itself works."""


class Texts(NamedTuple):
    """Text and thinking of a message."""

    text: str
    thinking: str


def field(value: Any, name: str) -> Any:
    """Field of a JSON object; None if it is missing, or the value is no object."""
    return value.get(name) if isinstance(value, dict) else None


def texts_of(message: Any) -> Texts:
    """Read a chat message or a piece of one.

    Its content is a text or, as Mistral sends it, a list of `text` and `thinking` parts. The thinking may also stand
    in a field of its own.

    Raises:
        UnreadableAnswerError: A field has another type, or the model's refusal stands in place of the content.
    """
    refusal = field(message, "refusal")
    content = field(message, "content")
    if refusal and not content:
        raise UnreadableAnswerError(f"the server withheld the answer (refusal {reprlib.repr(refusal)})")
    thinking = next((text for name in _THINKING if (text := _text(field(message, name), name))), "")
    if not isinstance(content, Sequence) or isinstance(content, str):
        return Texts(_text(content, "content"), thinking)
    parts = [_part(part) for part in content]
    return Texts("".join(part.text for part in parts), thinking + "".join(part.thinking for part in parts))


def _part(part: Any) -> Texts:
    kind = field(part, "type")
    if kind in ("text", "output_text"):
        return Texts(_text(field(part, "text"), "text"), "")
    if kind in ("thinking", "reasoning"):
        inner = next((value for name in (kind, "text") if (value := field(part, name)) is not None), None)
        is_list = isinstance(inner, Sequence) and not isinstance(inner, str)
        return Texts("", "".join(_part(each).text for each in inner) if is_list else _text(inner, kind))  # type: ignore[union-attr]
    raise UnreadableAnswerError(
        f"the server's answer has a part of type {kind!r}; the worker reads text and thinking parts"
    )


def _text(value: Any, name: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UnreadableAnswerError(f"the server's answer has {name} {reprlib.repr(value)}, which is not a text")
    return value


class CallPart(NamedTuple):
    """A tool call of a message, or a piece of one in a stream; pieces of one call have the same place."""

    place: int
    name: str
    arguments: str


def call_parts(message: Any) -> list[CallPart]:
    """Read the tool calls of a message, or their pieces.

    Raises:
        UnreadableAnswerError: A name or the arguments are not a text.
    """
    parts = []
    for place, call in enumerate(field(message, "tool_calls") or ()):
        told, function = field(call, "index"), field(call, "function")
        texts = (_text(field(function, name), f"a tool call's {name}") for name in ("name", "arguments"))
        parts.append(CallPart(place if told is None else told, *texts))
    return parts


def joined_calls(parts: Sequence[CallPart]) -> tuple[ToolCall, ...]:
    """Join pieces of calls to whole ones."""
    calls: dict[int, ToolCall] = {}
    for place, name, arguments in parts:
        call = calls.get(place, ToolCall("", ""))
        calls[place] = ToolCall(call.name or name, call.arguments + arguments)
    return tuple(calls[place] for place in sorted(calls))


def text_of(choice: Any) -> str:
    """Text of a completion's choice.

    Raises:
        UnreadableAnswerError: It is not a text.
    """
    return _text(field(choice, "text"), "text")


def finish_reason_in(choice: Any) -> str | None:
    """Finish reason of a choice as `"stop"` or `"length"`; None while a stream runs.

    Raises:
        UnreadableAnswerError: The server's filter withheld the answer, or the reason is unknown.
        EngineError: The server gave up.
    """
    told = field(choice, "finish_reason")
    if told is None or told == "":
        return None
    name = told.lower() if isinstance(told, str) else ""
    if name in _FILTERED:
        raise UnreadableAnswerError(f"the server's content filter withheld the answer (finish_reason {told!r})")
    if name in _FAILED:
        why = field(field(choice, "error"), "message")  # as OpenRouter passes a provider's error on
        raise EngineError(f"the server ended the request with finish_reason {told!r}: {why or 'see its log'}")
    if name not in _REASONS:
        raise UnreadableAnswerError(
            f"the server ended the answer with finish_reason {told!r}; the worker knows {', '.join(_REASONS)}"
        )
    return _REASONS[name]


def ids_of(choice: Any) -> list[int] | None:
    """Token ids of a choice, or None if the server returns none.

    Raises:
        UnreadableAnswerError: They are not whole numbers.
    """
    ids = field(choice, "token_ids")
    if ids is not None and not (isinstance(ids, list) and all(type(token) is int for token in ids)):
        raise UnreadableAnswerError(
            f"the server's answer has token_ids {reprlib.repr(ids)}, which are not whole numbers"
        )
    return ids


def count_in(usage: Any, name: str) -> int | None:
    """A token count of `usage`, or None if it is missing.

    Raises:
        UnreadableAnswerError: It is not a whole number of at least 0.
    """
    value = field(usage, name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not (value >= 0 and value % 1 == 0):
        raise UnreadableAnswerError(f"the server's usage has {name} {value!r}, which is not a number of tokens")
    return int(value)
