"""Answers of servers come out as one: shapes of log-probabilities, counts, tool calls and separated thinking."""

from __future__ import annotations

import asyncio
import contextvars
import json
import math
from typing import Any

import pytest

from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.errors import EngineError, NoOutputError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.meta import PROMPT, REUSE, TokenCounts, meta_of, note
from scaffolding_ext.protocol.task_results import TokenLogprob
from scaffolding_ext.request.program import Program, Question, enter_program
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.workers.openai.fields import UnreadableAnswerError, call_parts, joined_calls
from scaffolding_ext.workers.openai.flavors import FLAVORS
from scaffolding_ext.workers.openai.responses import GrowingAnswer, prompt_scores, token_counts
from scaffolding_ext.workers.openai.worker import OpenAIWorker
from tests.servers.openai_server import OpenAIServer


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


CALLS = [{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "time", "arguments": {}}]
TOOLS: Any = {"tools": [{"type": "function", "function": {"name": "weather"}}], "tool_choice": "auto"}
RESULT = {"role": "tool", "tool_call_id": "call-0"}


@pytest.mark.parametrize("streams", [False, True])
def test_tools_and_their_results_are_sent_and_calls_come_back(streams: bool) -> None:
    task = GenerationTask(input_str="sunny", max_tokens=400, temperature=0.0)
    task.streaming_output_flag = streams
    asked = {"role": "user", "content": "How is it?"}
    note(task, tools=TOOLS, turns=(asked,), last_turn=RESULT)
    with (
        OpenAIServer(ScriptedWorker(json.dumps(CALLS)), "m", flavor="vllm") as server,
        OpenAIWorker(server.url, "m", flavor="vllm", endpoint="chat") as worker,
    ):
        asyncio.run(worker.run_task(task))
        (body,) = [request.body for request in server.requests if "tools" in request.body]
    assert body["messages"] == [asked, RESULT | {"content": "sunny"}]
    assert {name: body[name] for name in TOOLS} == TOOLS
    assert task.output_str == ""
    assert [(call.name, json.loads(call.arguments)) for call in meta_of(task).calls] == [
        (call["name"], call["arguments"]) for call in CALLS
    ]


def test_pieces_of_several_calls_are_joined_by_their_index() -> None:
    pieces = [(1, "b", '{"x'), (0, "a", "{}"), (1, None, '": 1}')]
    deltas = [{"tool_calls": [{"index": i, "function": {"name": n, "arguments": a}}]} for i, n, a in pieces]
    parts = [part for delta in deltas for part in call_parts(delta)]
    assert joined_calls(parts) == (("a", "{}"), ("b", '{"x": 1}'))
    with pytest.raises(UnreadableAnswerError, match="a tool call's arguments"):
        call_parts({"tool_calls": [{"function": {"name": "a", "arguments": {}}}]})


@pytest.mark.parametrize(
    ("family", "text"),
    [(None, "<think>2 + 2</think>4"), ("magistral", "2 + 2[/THINK]4"), ("instruct", "<think>2 + 2</think>4")],
)
def test_the_marks_are_those_of_the_family(family: str | None, text: str) -> None:
    def joined() -> str:
        if family is not None:
            program = Program()
            program.question = Question(prompting=Prompting(chat=True, family=family))
            enter_program(program)
        growing = GrowingAnswer(FLAVORS["vllm"], expects_ids=False)
        for thinking, answer in (("2 + ", ""), ("2", "4")):
            delta = {"reasoning": thinking, "content": answer}
            growing.add({"choices": [{"delta": dict(**delta)}]})
        return "".join(growing.texts)

    assert contextvars.copy_context().run(joined) == text


@pytest.mark.parametrize("flavor", ["auto", "vllm"])
def test_a_chain_of_continued_turns_opens_thinking_once(flavor: str) -> None:
    text = f"<think>{'5 and 3 are 8. ' * 30}</think>The answer is \\boxed{{8}}."
    with OpenAIServer(ScriptedWorker(text), "m", flavor="vllm", reasons=True) as server:
        worker = OpenAIWorker(server.url, "m", flavor=flavor, endpoint="chat")
        chain = DynasorCoTController(100, 9, 16, mode="chunk")
        with ScaffoldingLlm(chain, {"generation": worker}) as llm:
            (output,) = llm.generate("5 and 3?").outputs
    assert output.text.startswith("<think>5 and 3")
    assert (output.text.count("<think>"), output.text.count("</think>")) == (1, 1)
