"""Each field of a server's answer has known types and values; any other is an error that quotes it."""

import math

import pytest

from scaffolding_ext.errors import EngineError
from scaffolding_ext.protocol.meta import TokenCounts
from scaffolding_ext.workers.openai.fields import (
    Texts,
    UnreadableAnswerError,
    count_in,
    finish_reason_in,
    ids_of,
    text_of,
    texts_of,
)
from scaffolding_ext.workers.openai.flavors import FLAVORS
from scaffolding_ext.workers.openai.responses import GrowingAnswer, token_counts


def test_known_finish_reasons():
    for told in ("stop", "STOP", "eos_token", "end_turn", "stop_sequence", "tool_calls"):
        assert finish_reason_in({"finish_reason": told}) == "stop"
    for told in ("length", "max_tokens", "MAX_TOKENS", "model_length", "repetition"):
        assert finish_reason_in({"finish_reason": told}) == "length"
    assert finish_reason_in({"finish_reason": None}) is finish_reason_in({"finish_reason": ""}) is None


@pytest.mark.parametrize("told", ["abort", "insufficient_system_resource"])
def test_a_server_that_gave_up(told):
    with pytest.raises(EngineError, match=told) as raised:
        finish_reason_in({"finish_reason": told})
    assert not isinstance(raised.value, UnreadableAnswerError)


def test_a_provider_s_error_is_quoted():
    with pytest.raises(EngineError, match="'error': the provider is overloaded"):
        finish_reason_in({"finish_reason": "error", "error": {"code": 502, "message": "the provider is overloaded"}})


@pytest.mark.parametrize("told", ["content_filter", "unheard_of", ["stop"]])
def test_withheld_and_unknown_reasons_are_quoted(told):
    with pytest.raises(UnreadableAnswerError) as raised:
        finish_reason_in({"finish_reason": told})
    assert repr(told) in str(raised.value)


@pytest.mark.parametrize(
    ("message", "texts"),
    [
        ({"content": "4"}, Texts("4", "")),
        ({"content": None, "reasoning_content": "2 + 2"}, Texts("", "2 + 2")),
        ({"content": "4", "reasoning": "2 + 2", "refusal": None}, Texts("4", "2 + 2")),
        ({"content": [{"type": "text", "text": "4"}, {"type": "output_text", "text": "2"}]}, Texts("42", "")),
        ({"content": [{"type": "thinking", "thinking": "2"}, {"type": "text", "text": "4"}]}, Texts("4", "2")),
        (
            {
                "content": [
                    {"type": "reasoning", "text": [{"type": "text", "text": "2"}]},
                    {"type": "text", "text": "4"},
                ]
            },
            Texts("4", "2"),
        ),
        ({"content": []}, Texts("", "")),
    ],
)
def test_content_is_a_text_or_a_list_of_parts(message, texts):
    assert texts_of(message) == texts


@pytest.mark.parametrize(
    ("message", "quoted"),
    [
        ({"content": 42}, "content 42"),
        ({"content": {"text": "4"}}, "content {'text': '4'}"),
        ({"content": ["4"]}, "part of type None"),
        ({"content": [{"type": "image_url", "image_url": "x"}]}, "'image_url'"),
        ({"content": [{"type": "text", "text": 4}]}, "text 4"),
        ({"content": "4", "reasoning_content": ["2"]}, r"reasoning_content \['2'\]"),
        ({"content": None, "refusal": "I cannot do that"}, "I cannot do that"),
    ],
)
def test_other_contents_are_quoted(message, quoted):
    with pytest.raises(UnreadableAnswerError, match=quoted):
        texts_of(message)


def test_completions():
    assert (text_of({"text": None}), ids_of({}), ids_of({"token_ids": [3, 5]})) == ("", None, [3, 5])
    with pytest.raises(UnreadableAnswerError, match="text 7"):
        text_of({"text": 7})
    for ids in ("3, 5", [3.0], ["3"], [True]):
        with pytest.raises(UnreadableAnswerError, match="token_ids"):
            ids_of({"token_ids": ids})


@pytest.mark.parametrize("value", [-1, 2.5, "12", True, math.nan])
def test_counts_are_whole_numbers(value):
    with pytest.raises(UnreadableAnswerError, match="usage has completion_tokens"):
        count_in({"completion_tokens": value}, "completion_tokens")


REASONING = {
    "prompt_tokens": 10,
    "completion_tokens": 5,
    "total_tokens": 315,
    "completion_tokens_details": {"reasoning_tokens": 300},
}


@pytest.mark.parametrize(
    ("usage", "decoded"),
    [
        (REASONING, 305),  # thinking stands beside
        ({"prompt_tokens": 10, "completion_tokens": 305, "total_tokens": 315}, 305),
        ({"prompt_tokens": 10, "completion_tokens": 305}, 305),
        ({"prompt_tokens": 10.0, "completion_tokens": 5, "total_tokens": 12}, 5),
        ({}, 7),
    ],
)
def test_thinking_counts_as_decoded_wherever_it_stands(usage, decoded):
    assert token_counts(usage, 7) == TokenCounts(decoded, int(usage.get("prompt_tokens", 0)))


def test_a_whole_answer_says_why_it_ends():
    choice = {"text": "so far", "finish_reason": None}
    growing = GrowingAnswer(FLAVORS["openai"], expects_ids=False)
    growing.add({"choices": [choice]})
    with pytest.raises(EngineError, match="finish_reason None"):
        growing.end()
