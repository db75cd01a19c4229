"""Bounds of request fields and of an operator's settings, at their edges, and the order of log-probabilities."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.serving.bodies import ChatBody, CompletionBody, read_body
from scaffolding_ext.serving.jobs import chat_logprobs, text_logprobs
from scaffolding_ext.serving.refusals import ApiError
from scaffolding_ext.serving.settings import read_effort
from scaffolding_ext.serving.thinking import Reading

MESSAGES = [{"role": "user", "content": "2+2?"}]


def chat(**fields: Any) -> ChatBody:
    return read_body(ChatBody, json.dumps({"model": "m", "messages": MESSAGES} | fields).encode())


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "thinking_token_budget"])
@pytest.mark.parametrize(("value", "is_taken"), [(0, False), (1, True), (2**31 - 1, True), (2**31, False)])
def test_a_count_is_from_1_to_31_bits(name: str, value: int, is_taken: bool) -> None:
    if is_taken:
        assert getattr(chat(**{name: value}), name) == value
        return
    with pytest.raises(ApiError) as refused:
        chat(**{name: value})
    assert (refused.value.status, refused.value.param) == (400, name)


@pytest.mark.parametrize(
    ("name", "taken", "refused"),
    [
        ("best_of", 1, [0, 2]),
        ("echo", False, [True]),
        ("store", False, [True]),
        ("suffix", "", ["x"]),
        ("tool_choice", "auto", ["required", {"type": "function", "function": {"name": "f"}}]),
        ("service_tier", "auto", ["flex"]),
    ],
)
def test_a_field_that_nothing_here_can_honour_is_taken_if_it_asks_for_nothing(
    name: str, taken: Any, refused: list[Any]
) -> None:
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
    }
    turns = [*MESSAGES, {"role": "assistant", "content": "4", **nothing}, {"role": "user", "content": "And 3+3?"}]
    assert [turn.text for turn in chat(messages=turns).messages] == ["2+2?", "4", "And 3+3?"]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"messages": [{**MESSAGES[0], "audio": {"id": "x"}}]}, "unsupported_parameter", "messages.0.audio"),
        ({"messages": [{**MESSAGES[0], "annotations": [{}]}]}, "unsupported_parameter", "messages.0.annotations"),
        ({"messages": [MESSAGES[0], {**MESSAGES[0], "own": 1}]}, "unknown_parameter", "messages.1.own"),
        ({"stream_options": {"own": 1}}, "unknown_parameter", "stream_options.own"),
    ],
)
def test_further_fields_inside_are_refused_by_their_path(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(ApiError) as error:
        chat(**fields)
    assert (error.value.code, error.value.param) == (code, param)


def test_prompts_are_texts_or_token_ids() -> None:
    def prompts(prompt: Any) -> Any:
        return read_body(CompletionBody, json.dumps({"model": "m", "prompt": prompt}).encode()).prompts

    assert prompts("one") == ["one"]
    assert prompts(["one", "two"]) == ["one", "two"]
    assert prompts([1, 2]) == [[1, 2]]
    assert prompts([[1, 2], [3]]) == [[1, 2], [3]]


@pytest.mark.parametrize(("text", "tokens"), [("low=1", 1), (" low = 512", 512)])
def test_an_effort_is_at_least_one_token(text: str, tokens: int) -> None:
    assert read_effort(text) == ("low", tokens)


@pytest.mark.parametrize("text", ["low=0", "low=-1", "low=1.5", "low=", "low", "=5"])
def test_an_effort_of_no_tokens_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^effort: is .*; it must have the form NAME=TOKENS"):
        read_effort(text)


@pytest.mark.parametrize("num_top", [0, 2, 3])
def test_the_likeliest_tokens_come_first_and_no_more_than_were_asked_for(num_top: int) -> None:
    prompting = Prompting.for_model("tinylm/target")
    rare, drawn, best, other = prompting.encode("1234")
    values = {rare: -5.0, drawn: -1.0, best: -0.5, other: -2.0}
    step = {token: SimpleNamespace(logprob=value) for token, value in values.items()}
    result: Any = SimpleNamespace(outputs=[SimpleNamespace(token_ids=[drawn], logprobs=[step])])
    told = [("3", -0.5), ("2", -1.0), ("4", -2.0)][:num_top]
    (entry,) = chat_logprobs(result, Reading(None), prompting, num_top)["content"]
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("2", -1.0, [50])
    assert [(top["token"], top["logprob"]) for top in entry["top_logprobs"]] == told
    whole = text_logprobs(result, prompting, num_top)
    assert whole == {"tokens": ["2"], "token_logprobs": [-1.0], "top_logprobs": [dict(told)], "text_offset": [0]}
