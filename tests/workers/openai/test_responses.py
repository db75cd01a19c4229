"""Both shapes of log-probabilities, and counts, come out as one."""

import math

import pytest

from scaffolding_ext.errors import EngineError, NoOutputError
from scaffolding_ext.protocol.meta import PROMPT, REUSE, TokenCounts
from scaffolding_ext.protocol.task_results import TokenLogprob
from scaffolding_ext.workers.openai.fields import UnreadableAnswerError
from scaffolding_ext.workers.openai.flavors import FLAVORS
from scaffolding_ext.workers.openai.responses import GrowingAnswer, prompt_scores, token_counts


def legacy():
    logprobs = {
        "tokens": ["token_id:7", "token_id:9"],
        "token_logprobs": [-0.5, -2.0],
        "top_logprobs": [{"token_id:7": -0.5, "token_id:8": -1.5}, {"token_id:4": -0.1}],
    }
    return {"text": "ab", "token_ids": [7, 9], "logprobs": logprobs, "finish_reason": "stop"}


def like_chat():
    content = [
        {"id": 7, "logprob": -0.5, "top_logprobs": [{"id": 7, "logprob": -0.5}, {"id": 8, "logprob": -1.5}]},
        {"id": 9, "logprob": -2.0, "top_logprobs": [{"id": 4, "logprob": -0.1}]},
    ]
    return {"text": "ab", "logprobs": {"content": content}, "finish_reason": "stop"}


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
    choice["token_ids"] = None
    choice["logprobs"]["tokens"] = ["a", "b"]
    assert read(choice, "vllm").token_ids is None


def test_chat_answers_whole_and_in_pieces():
    for name in ("message", "delta"):
        choice = {name: {"content": "ab"}, "finish_reason": None}
        assert "".join(read(choice, "openai").texts) == "ab"


def test_cached_prompt_tokens_are_reused():
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}
    assert token_counts(usage, 3) == TokenCounts(3, 2, 8)
    assert token_counts(None, 3) == TokenCounts(3)


@pytest.mark.parametrize("values", [None, [None, -1.0], [None, -1.0, None]])
def test_missing_scores_are_an_error(values):
    with pytest.raises(EngineError, match="of 3 prompt tokens"):
        prompt_scores(echoed(values), 3)


def read(choice, flavor):
    growing = GrowingAnswer(FLAVORS[flavor], expects_ids=False)
    growing.add({"choices": [choice]})
    return growing


def echoed(values):
    choice = {"logprobs": {"token_logprobs": values}}
    return {"choices": [choice], "usage": None}


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
    choice = {"text": "a", "logprobs": {"content": [entry]}, "finish_reason": "stop"}
    with pytest.raises(UnreadableAnswerError, match=what):
        read(choice, "llama_cpp")


def usage_of(prompt, completion, total=None, **more):
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total, **more}


def grown(*pieces):
    """An answer of pieces, each of a text and the usage that comes with it."""
    answer = GrowingAnswer(FLAVORS["openai"], expects_ids=False)
    for text, usage in pieces:
        choice = {"delta": {"content": text}, "finish_reason": None}
        answer.add({"choices": [choice], "usage": usage})
    answer.add({"choices": [{"delta": None, "text": "", "finish_reason": "stop"}], "usage": None})
    answer.end()
    return answer


@pytest.mark.parametrize(
    ("usage", "decoded"),
    [
        (usage_of(30, 20, 2050), 20),  # the total holds tokens of a cache
        (usage_of(30, 20, 50), 20),
        (usage_of(30, 20, 150, completion_tokens_details={"reasoning_tokens": 100}), 120),  # beside the completion
        (usage_of(30, 120, 150, completion_tokens_details={"reasoning_tokens": 100}), 120),  # within it
        (usage_of(30, 20, 90, completion_tokens_details={"reasoning_tokens": 100}), 20),  # explains nothing
        (usage_of(30, 20, 150, completion_tokens_details=None), 20),
        (usage_of(30, 0, 30), 2),  # a text has tokens: its pieces are counted
        (usage_of(30, None), 2),
    ],
)
def test_a_total_counts_only_if_thinking_explains_it(usage, decoded):
    assert grown(("a", None), ("b", usage)).counts == TokenCounts(decoded, 30)


@pytest.mark.parametrize("last", [None, usage_of(0, 0, 0), usage_of(None, None)])
def test_a_last_piece_of_zeros_undoes_nothing(last):
    answer = grown(("a", usage_of(30, 1, 31)), ("b", usage_of(30, 2, 32)), ("", last))
    assert answer.counts == TokenCounts(2, 30)
    assert answer.uncounted == REUSE


@pytest.mark.parametrize("usage", [None, usage_of(0, 0, 0)])
def test_zeros_alone_are_no_counts(usage):
    answer = grown(("a", usage), ("b", usage))
    assert (answer.counts.decoded, answer.uncounted) == (2, PROMPT)


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["ok \ud83d", "\udc4d 7"], "ok \U0001f44d 7"),
        (["\ud83d", "", "\udc4d"], "\U0001f44d"),
        (["a\ud83d\udc4db"], "a\U0001f44db"),
        (["half \ud83d"], "half \ufffd"),
        (["\udc4d half"], "\ufffd half"),
        (["\ud83d", "x"], "\ufffdx"),
        (["é", "ü"], "éü"),
    ],
)
def test_halves_of_a_character_are_joined_and_a_half_alone_is_replaced(pieces, text):
    answer = grown(*((piece, None) for piece in pieces))
    assert "".join(answer.texts) == text
    "".join(answer.texts).encode()


@pytest.mark.parametrize(
    "replies",
    [
        [[(0, "a"), (1, "x")], [(1, "y"), (0, "b")]],
        [[(1, "x")], [(0, "ab")]],
        [[(None, "a")], [(None, "b")]],
        [[(0, "ab"), (1, "ab"), (2, "ab")]],
        [[(0, "a"), (0, "b")]],
    ],
)
def test_choices_are_told_apart_by_their_index(replies):
    answer = GrowingAnswer(FLAVORS["openai"], False)
    for choices in replies:
        parts = [{"index": index, "text": text, "finish_reason": None} for index, text in choices]
        answer.add({"choices": parts})
    assert "".join(answer.texts) == "ab"
