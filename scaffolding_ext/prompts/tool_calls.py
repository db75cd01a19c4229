"""Tool calls in a model's text, and a canonical form for comparing them.

Models of the Hermes and Qwen families write a call as JSON between `<tool_call>` and `</tool_call>`; their chat
templates show them this format, and vLLM's parser `hermes` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class ToolCall(NamedTuple):
    name: str
    arguments: dict[str, Any]


class Said(NamedTuple):
    """A model's text after its thinking.

    Attributes:
        text: Text before the first call, or all of it without calls.
        calls: The calls in order. None if one is unreadable or names a tool that was not offered.
    """

    text: str
    calls: list[ToolCall] | None


def said(text: str, names: Collection[str]) -> Said:
    """Parse the calls in a text without thinking; `names` are the offered tools."""
    calls: list[ToolCall | None] = []
    begin = text.find(OPEN)
    if begin < 0:
        return Said(text, [])
    before = text[:begin]
    while begin >= 0:  # by positions: a pattern or copies would take quadratic time
        begin += len(OPEN)
        closed = text.find(CLOSE, begin)
        end = len(text) if closed < 0 else closed  # the last call may be unclosed
        calls.append(_call_of(text[begin:end].strip()))
        begin = text.find(OPEN, end)
    sound = [call for call in calls if call is not None and call.name in names]
    return Said(before.rstrip(), sound if len(sound) == len(calls) else None)


def names_of(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(tool["function"]["name"]) for tool in tools]


def canonical(calls: Sequence[ToolCall]) -> str:
    """Serialize calls so that equal calls give equal texts, whatever the key order, spacing, or 1 versus 1.0."""
    document = [{"name": call.name, "arguments": _plain(call.arguments)} for call in calls]
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def classes_of(answers: Sequence[str | None]) -> list[int]:
    """Class numbers of answers by exact text, in order of first appearance; -1 for None."""
    numbers: dict[str, int] = {}
    return [-1 if answer is None else numbers.setdefault(answer, len(numbers)) for answer in answers]


def _call_of(text: str) -> ToolCall | None:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not isinstance(document.get("name"), str):
        return None
    arguments = document.get("arguments", document.get("parameters", {}))
    if isinstance(arguments, str):  # some models write the arguments as a JSON string
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    return ToolCall(document["name"], arguments) if isinstance(arguments, dict) else None


def _plain(value: Any) -> Any:
    """The value with each number in one form."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value
