"""Calls that must come are read only if they are calls of a given tool."""

from __future__ import annotations

from typing import Any

import pytest

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.tool_calls import RequiredCall
from scaffolding_ext.protocol.meta import ToolCall

TOOLS: Any = [{"type": "function", "function": {"name": name}} for name in ("weather", "time")]


def test_a_required_call_is_one_of_a_given_tool() -> None:
    required = RequiredCall.of(TOOLS, "required")
    assert required is not None
    assert required.read('{"name": "time", "arguments": {"zone": "é"}}') == ToolCall("time", '{"zone": "é"}')
    others = (
        '{"name": "stocks", "arguments": {}}',
        '{"arguments": {}}',
        '{"name": "time", "arguments": []}',
        '{"na',
        "7",
    )
    assert [text for text in others if required.read(text) is not None] == []


def test_a_named_call_is_its_arguments() -> None:
    named = RequiredCall.of(TOOLS, {"type": "function", "function": {"name": "weather"}})
    assert named is not None
    assert named.read('{"city": "Paris"}') == ToolCall("weather", '{"city": "Paris"}')
    assert named.read('{"city": "Par') is None
    with pytest.raises(ConfigError, match=r"names no given tool .*; the tools are \['weather', 'time'\]"):
        RequiredCall.of(TOOLS, {"type": "function", "function": {"name": "stocks"}})
