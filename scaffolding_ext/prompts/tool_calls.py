"""Tool calls in a model's answer, and a canonical form for comparing them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from scaffolding_ext.answers.reading import Marks
from scaffolding_ext.prompts.call_forms import KNOWN, CallForm, ToolCall, Tools


class Said(NamedTuple):
    """A model's text after its thinking.

    Attributes:
        text: Text before the first call, or all of it without calls.
        calls: The calls in order. None if one is unreadable or names a tool that was not offered.
    """

    text: str
    calls: list[ToolCall] | None


class OfferedTools(NamedTuple):
    """Tools that a model may call.

    Attributes:
        tools: The tools, in OpenAI's format.
        forms: Forms in which it may write a call; its own first.
    """

    tools: Tools
    forms: Sequence[CallForm] = KNOWN

    def said(self, text: str) -> Said:
        """Read the calls in a text without thinking."""
        starts = [(start, form) for form in self.forms if (start := form.start(text, self.tools)) >= 0]
        if not starts:
            return Said(text, [])
        for start, form in starts:
            calls = form.read(text[start:], self.tools)
            if calls is not None:
                return Said(text[:start].rstrip(), calls)
        return Said(text[: min(start for start, _ in starts)].rstrip(), None)

    def are_calls(self, text: str) -> bool:
        """True if a text holds whole calls and nothing else."""
        return any(form.is_whole(text, self.tools) for form in self.forms)

    def added_to(self, marks: Marks) -> Marks:
        """A family's marks with those of calls."""
        return marks._replace(call_open=self.forms[0].mark, call_close=self.forms[0].close)


def canonical(calls: Sequence[ToolCall]) -> str:
    """Serialize calls so that equal calls give equal texts, whatever the key order, spacing, or 1 versus 1.0."""
    document = [{"name": call.name, "arguments": _plain(call.arguments)} for call in calls]
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def classes_of(answers: Sequence[str | None]) -> list[int]:
    """Class numbers of answers by exact text, in order of first appearance; -1 for None."""
    numbers: dict[str, int] = {}
    return [-1 if answer is None else numbers.setdefault(answer, len(numbers)) for answer in answers]


def _plain(value: Any) -> Any:
    """The value with each number in one form."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value
