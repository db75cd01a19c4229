"""Required tool calls, and a canonical form for comparing calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol.meta import ToolCall

Tools = Sequence[Mapping[str, Any]]


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

    def read(self, text: str) -> ToolCall | None:
        """Read the call; None if it is cut."""
        value = as_value(text)
        if self.name is not None:
            return ToolCall(self.name, text) if isinstance(value, dict) else None
        names = [tool["function"]["name"] for tool in self.tools]
        if not isinstance(value, dict) or value.get("name") not in names or type(value.get("arguments")) is not dict:
            return None
        return ToolCall(value["name"], json.dumps(value["arguments"], ensure_ascii=False))


def as_value(text: Any) -> Any:
    """The value of JSON text; anything else as it is."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return text


def canonical(calls: Sequence[ToolCall]) -> str:
    """Serialize calls so that equal calls give equal texts, whatever the key order, spacing, or 1 versus 1.0."""
    document = [{"name": call.name, "arguments": _plain(as_value(call.arguments))} for call in calls]
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
