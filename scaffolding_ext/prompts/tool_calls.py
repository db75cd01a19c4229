"""Tool calls in a model's answer, and a canonical form for comparing them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scaffolding_ext.answers.reading import Marks
from scaffolding_ext.errors import ConfigError
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


class RequiredCall(NamedTuple):
    """A call that an answer must be, under guided decoding.

    Attributes:
        tools: The tools of which one is called.
        name: The tool to call, whose arguments are then the whole answer. None leaves the choice to the model, which
            writes an object of `name` and `arguments`.
    """

    tools: Tools
    name: str | None = None

    @classmethod
    def of(cls, tools: Tools, tool_choice: str | Mapping[str, Any] | None) -> RequiredCall | None:
        """The call that OpenAI's `tool_choice` requires; None for `auto`, `none` and None.

        Raises:
            ConfigError: No such tool is given.
        """
        if tool_choice in (None, "none", "auto"):
            return None
        if not tools:
            raise ConfigError("requires a call, but no tools are given: give tools, or leave it out", "tool_choice")
        if tool_choice == "required":
            return cls(tools)
        function = tool_choice.get("function") if isinstance(tool_choice, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        names = [tool["function"]["name"] for tool in tools]
        if name not in names:
            raise ConfigError(f"names no given tool ({str(tool_choice)[:80]}); the tools are {names}", "tool_choice")
        return cls(tools, name)

    @property
    def guide(self) -> dict[str, Any]:
        """The answer's form, as `guided_decoding` takes it."""
        arguments = {tool["function"]["name"]: _schema_of(tool["function"]) for tool in self.tools}
        if self.name is not None:
            return {"json": arguments[self.name]}
        shared, forms = {}, []
        for name, schema in arguments.items():
            moved = _moved(schema, f"#/$defs/{name}")
            if moved != schema:  # its references must lead to it
                shared[name] = moved
                moved = {"$ref": f"#/$defs/{name}"}
            forms.append(
                {
                    "type": "object",
                    "properties": {"name": {"const": name}, "arguments": moved},
                    "required": ["name", "arguments"],
                    "additionalProperties": False,
                }
            )
        return {"json": {"anyOf": forms, **({"$defs": shared} if shared else {})}}

    def said(self, text: str) -> Said:
        """Read the call; the calls are None if it is cut."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return Said(text, None)
        if self.name is not None:
            value = {"name": self.name, "arguments": value}
        names = [tool["function"]["name"] for tool in self.tools]
        is_call = isinstance(value, dict) and value.get("name") in names and isinstance(value.get("arguments"), dict)
        return Said("", [ToolCall(value["name"], value["arguments"])]) if is_call else Said(text, None)


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


def _schema_of(function: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a function's arguments."""
    none = {"properties": {}, "additionalProperties": False}
    return {"type": "object", **(function.get("parameters") or none)}


def _moved(schema: Any, root: str) -> Any:
    """A schema with its references, for a document that has it at `root`."""
    if isinstance(schema, list):
        return [_moved(each, root) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: root + value[1:] if key == "$ref" and isinstance(value, str) and value[:1] == "#" else _moved(value, root)
        for key, value in schema.items()
    }
