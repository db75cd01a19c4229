"""Calls are read as Hermes and Qwen models write them, and equal calls have one text."""

from __future__ import annotations

import pytest

from scaffolding_ext.prompts.call_forms import ToolCall
from scaffolding_ext.prompts.tool_calls import OfferedTools, Said, canonical, classes_of

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It is sunny.", Said("It is sunny.", [])),
        (WEATHER, Said("", [ToolCall("weather", {"city": "Paris", "days": 2})])),
        (f"Let me look.\n{WEATHER}", Said("Let me look.", [ToolCall("weather", {"city": "Paris", "days": 2})])),
        (f"{WEATHER}\n{WEATHER}", Said("", [ToolCall("weather", {"city": "Paris", "days": 2})] * 2)),
        ('<tool_call>{"name": "weather", "arguments": "{}"}', Said("", [ToolCall("weather", {})])),
        ('<tool_call>{"name": "weather", "arguments": </tool_call>', Said("", None)),
        ('<tool_call>{"name": "other", "arguments": {}}</tool_call>', Said("", None)),
        ("<tool_call>[1]</tool_call>", Said("", None)),
        ('<tool_call>{"name": "weather", "arguments": [1]}</tool_call>', Said("", None)),
        ("<tool_call>" + "[" * 100_000, Said("", None)),
    ],
)
def test_calls_are_read_or_known_to_be_broken(text: str, found: Said) -> None:
    assert OfferedTools([TOOL]).said(text) == found


def test_equal_calls_have_one_text() -> None:
    one = canonical([ToolCall("f", {"a": 1, "b": [2.0, {"c": None}]})])
    assert one == canonical([ToolCall("f", {"b": [2, {"c": None}], "a": 1.0})])
    assert one == '[{"arguments":{"a":1,"b":[2,{"c":null}]},"name":"f"}]'
    others = [
        [ToolCall("g", {"a": 1, "b": [2, {"c": None}]})],
        [ToolCall("f", {"a": "1", "b": [2, {"c": None}]})],
        [ToolCall("f", {"a": True, "b": [2, {"c": None}]})],
        [ToolCall("f", {"a": 1, "b": [2, {"c": None}]})] * 2,  # called twice is not called once
    ]
    assert one not in map(canonical, others)


def test_classes_go_by_the_text_alone() -> None:
    assert classes_of(["b", None, "1", "1.0", "b"]) == [0, -1, 1, 2, 0]
