"""Bounds of request fields and of an operator's settings, at their edges, and the order of log-probabilities."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from scaffolding_ext.cli.serve import read_effort
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.serving.bodies import ChatBody, CompletionBody, read_body
from scaffolding_ext.serving.refusals import ApiError

MESSAGES = [{"role": "user", "content": "2+2?"}]


def chat(**fields: Any) -> ChatBody:
    return read_body(ChatBody, json.dumps({"model": "m", "messages": MESSAGES} | fields).encode())


def test_a_count_is_from_1_to_31_bits() -> None:
    for value, is_taken in [(0, False), (1, True), (2**31 - 1, True), (2**31, False)]:
        for name in ["max_tokens", "max_completion_tokens", "thinking_token_budget"]:
            if is_taken:
                assert getattr(chat(**{name: value}), name) == value
                continue
            with pytest.raises(ApiError) as refused:
                chat(**{name: value})
            assert (refused.value.status, refused.value.param) == (400, name)


def test_a_field_that_nothing_here_can_honour_is_taken_if_it_asks_for_nothing() -> None:
    for name, taken, refused in [
        ("best_of", 1, [0, 2]),
        ("echo", False, [True]),
        ("store", False, [True]),
        ("suffix", "", ["x"]),
        ("service_tier", "auto", ["flex"]),
    ]:
        assert chat(**{name: taken}).messages
        for value in refused:
            with pytest.raises(ApiError, match=f"{name} is not served") as error:
                chat(**{name: value})
            assert (error.value.code, error.value.param) == ("unsupported_parameter", name)


def test_an_answer_that_a_client_sends_back_whole_is_taken() -> None:
    nothing = {
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
        "new": None,
        "provider_specific_fields": {"refusal": None},
    }
    turns = [*MESSAGES, {"role": "assistant", "content": "4", **nothing}, {"role": "user", "content": "And 3+3?"}]
    assert [turn.text for turn in chat(messages=turns).messages] == ["2+2?", "4", "And 3+3?"]


def test_further_fields_inside_are_refused_by_their_path() -> None:
    for fields, code, param in [
        ({"messages": [{**MESSAGES[0], "audio": {"id": "x"}}]}, "unsupported_parameter", "messages.0.audio"),
        ({"messages": [{**MESSAGES[0], "annotations": [{}]}]}, "unsupported_parameter", "messages.0.annotations"),
        ({"messages": [MESSAGES[0], {**MESSAGES[0], "own": 1}]}, "unknown_parameter", "messages.1.own"),
        ({"stream_options": {"own": 1}}, "unknown_parameter", "stream_options.own"),
    ]:
        with pytest.raises(ApiError) as error:
            chat(**fields)
        assert (error.value.code, error.value.param) == (code, param)


def test_a_field_of_several_types_is_refused_by_its_own_name() -> None:
    for fields, param in [
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ["x", 5]}, "stop"),
    ]:
        with pytest.raises(ApiError, match=rf"^{param}: must be a text, or at most ") as error:
            chat(**fields)
        assert error.value.param == param


def test_a_prompt_of_another_type_is_refused_as_prompt() -> None:
    for prompt in [5, [], [{}], [[]], ["x", 5], [[1], "x"], {}]:
        with pytest.raises(ApiError, match=r"^prompt: must be a text, a list of texts, or token ids") as error:
            read_body(CompletionBody, json.dumps({"model": "m", "prompt": prompt}).encode())
        assert error.value.param == "prompt"


def test_a_body_has_a_limit_of_objects_and_lists() -> None:
    content = json.dumps({"model": "m", "messages": MESSAGES, "metadata": [{}] * 7}).encode()
    assert read_body(ChatBody, content, 11).messages
    with pytest.raises(ApiError, match="has more than 10 objects and lists") as error:
        read_body(ChatBody, content, 10)
    assert (error.value.status, error.value.code) == (413, "body_too_large")


def test_a_long_list_of_wrong_items_is_refused_at_its_first() -> None:
    content = json.dumps({"model": "m", "messages": [{}] * 200_000}).encode()
    with pytest.raises(ValidationError) as error:
        ChatBody.model_validate_json(content)
    assert error.value.error_count() < 5  # all of them take seconds


def test_prompts_are_texts_or_token_ids() -> None:
    def prompts(prompt: Any) -> Any:
        return read_body(CompletionBody, json.dumps({"model": "m", "prompt": prompt}).encode()).prompts

    assert prompts("one") == ["one"]
    assert prompts(["one", "two"]) == ["one", "two"]
    assert prompts([1, 2]) == [[1, 2]]
    assert prompts([[1, 2], [3]]) == [[1, 2], [3]]


def test_an_effort_of_no_tokens_is_refused() -> None:
    for text in ["low=0", "low=-1", "low=1.5", "low=", "low", "=5"]:
        with pytest.raises(ConfigError, match=r"^effort: is .*; it must have the form NAME=TOKENS"):
            read_effort(text)
