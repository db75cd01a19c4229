"""Both shapes of log-probabilities, and counts, come out as one."""

import math
from types import SimpleNamespace

import pytest

from scaffolding_ext.errors import EngineError, NoOutputError
from scaffolding_ext.protocol.meta import TokenCounts
from scaffolding_ext.protocol.task_results import TokenLogprob
from scaffolding_ext.workers.openai.fields import UnreadableAnswerError
from scaffolding_ext.workers.openai.flavors import FLAVORS
from scaffolding_ext.workers.openai.responses import GrowingAnswer, prompt_scores, token_counts


def legacy():
    logprobs = SimpleNamespace(
        tokens=["token_id:7", "token_id:9"],
        token_logprobs=[-0.5, -2.0],
        top_logprobs=[{"token_id:7": -0.5, "token_id:8": -1.5}, {"token_id:4": -0.1}],
    )
    return SimpleNamespace(text="ab", token_ids=[7, 9], logprobs=logprobs, finish_reason="stop")


def like_chat():
    content = [
        {"id": 7, "logprob": -0.5, "top_logprobs": [{"id": 7, "logprob": -0.5}, {"id": 8, "logprob": -1.5}]},
        {"id": 9, "logprob": -2.0, "top_logprobs": [{"id": 4, "logprob": -0.1}]},
    ]
    return SimpleNamespace(text="ab", logprobs=SimpleNamespace(content=content), finish_reason="stop")


@pytest.mark.parametrize(("choice", "flavor"), [(legacy(), "vllm"), (like_chat(), "llama_cpp")])
def test_both_shapes_give_the_same(choice, flavor):
    piece = read(choice, flavor)
    assert (piece.texts, piece.token_ids, piece.finish_reason) == (["ab"], [7, 9], "stop")
    assert piece.logprobs == [
        {7: TokenLogprob(-0.5, 1), 8: TokenLogprob(-1.5, 2)},
        {4: TokenLogprob(-0.1, 1), 9: TokenLogprob(-2.0)},
    ]


def test_tokens_by_their_text_are_no_ids():
    choice = legacy()
    choice.token_ids = None
    choice.logprobs.tokens = ["a", "b"]
    assert read(choice, "vllm").token_ids is None


def test_chat_answers_whole_and_in_pieces():
    for name in ("message", "delta"):
        choice = SimpleNamespace(**{name: SimpleNamespace(content="ab")}, finish_reason=None)
        assert "".join(read(choice, "openai").texts) == "ab"


def test_an_aborted_answer_is_an_error():
    choice = SimpleNamespace(text="ab", finish_reason="abort")
    with pytest.raises(EngineError, match="'abort'"):
        read(choice, "vllm")


def test_cached_prompt_tokens_are_reused():
    usage = SimpleNamespace(
        prompt_tokens=10, completion_tokens=3, prompt_tokens_details=SimpleNamespace(cached_tokens=8)
    )
    assert token_counts(usage, 3) == TokenCounts(3, 2, 8)
    assert token_counts(None, 3) == TokenCounts(3)


@pytest.mark.parametrize("values", [None, [None, -1.0], [None, -1.0, None]])
def test_missing_scores_are_an_error(values):
    with pytest.raises(EngineError, match="of 3 prompt tokens"):
        prompt_scores(echoed(values), 3)


def read(choice, flavor):
    growing = GrowingAnswer(FLAVORS[flavor], expects_ids=False)
    growing.add(SimpleNamespace(choices=[choice]))
    return growing


def echoed(values):
    choice = SimpleNamespace(logprobs=SimpleNamespace(token_logprobs=values))
    return SimpleNamespace(choices=[choice], usage=None)


def test_a_prompt_score_that_is_no_number_is_no_output():
    with pytest.raises(NoOutputError, match="impossible log-probability nan"):
        prompt_scores(echoed([None, -1.0, math.nan]), 3)


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ({"id": 7, "logprob": "-0.5"}, "log-probability '-0.5', which is not a number"),
        ({"id": 7, "logprob": True}, "log-probability True, which is not a number"),
        ({"id": "7", "logprob": -0.5}, "token id '7', which is not a whole number"),
        ({"id": 7.5, "logprob": -0.5}, "token id 7.5, which is not a whole number"),
    ],
)
def test_a_number_of_another_type_is_quoted(entry, what):
    choice = SimpleNamespace(text="a", logprobs=SimpleNamespace(content=[entry]), finish_reason="stop")
    with pytest.raises(UnreadableAnswerError, match=what):
        read(choice, "llama_cpp")
