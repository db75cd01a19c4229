"""Tools over the front: calls are told as OpenAI tells them, and a vote counts equal calls as one, thinking or not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

from scaffolding_ext.controllers.basic.best_of_n import BestOfNController
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.prompts.tokenizers import load_tokenizer
from scaffolding_ext.protocol import Controller

pytest.importorskip("transformers")

TEMPLATE = (
    "{% if tools %}TOOLS {{ tools | tojson }}; {% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "CALL {{ call.function.name }} {{ call.function.arguments.city }}"
    "{% endfor %}"
    "{% if message.tool_call_id %}FOR {{ message.tool_call_id }}{% endif %}; {% endfor %}assistant: "
)
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
ASK: Any = {"model": "model", "messages": [{"role": "user", "content": "How is it in Paris?"}], "tools": TOOLS}


def call(city: str, **more: Any) -> str:
    return "<tool_call>\n" + json.dumps({"name": "weather", "arguments": {**more, "city": city}}) + "\n</tool_call>"


def thinking(text: str, thought: str = "Hm, <tool_call> might do.") -> str:
    return f"{thought}</think>\n\n{text}"


def prompted(controller: Any, family: str = "deepseek_r1") -> Controller:
    tokenizer = copy.deepcopy(load_tokenizer("tinylm/draft"))
    tokenizer.chat_template = TEMPLATE
    opens = "<think>\n" if family == "deepseek_r1" else None
    controller.prompting = Prompting(tokenizer, family, assistant_prefix=opens)
    return controller  # type: ignore[no-any-return]


def vote(num: int, family: str = "deepseek_r1") -> Controller:
    plain = NativeGenerationController({"temperature": 0.7})
    return prompted(MajorityVoteController(plain, num, allocation=None), family)


def replies(*texts: str) -> Callable[[Any], str]:
    left = list(texts)
    return lambda task: left.pop(0)


def test_calls_come_back_as_openai_tells_them_with_the_thinking_before(serve: Any) -> None:
    served = serve(thinking("Let me see.\n" + call("Paris", days=2)), prompted(NativeGenerationController()))
    with served.client() as client:
        (choice,) = client.chat.completions.create(**ASK).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    assert choice.message.reasoning_content == "Hm, <tool_call> might do."
    (made,) = choice.message.tool_calls
    assert (made.type, made.function.name) == ("function", "weather")
    assert json.loads(made.function.arguments) == {"city": "Paris", "days": 2}
    (task,) = served.worker.tasks
    assert task.input_str.startswith('TOOLS [{"type": "function", "function": {"name": "weather"')


def test_a_vote_counts_equal_calls_as_one(serve: Any) -> None:
    texts = [
        thinking(call("Rome")),
        thinking('<tool_call>{"arguments": {"city":"Paris","days":2.0},"name":"weather"}</tool_call>', "One way."),
        thinking("It is sunny."),
        thinking(call("Paris", days=2), "Another way."),
    ]
    served = serve(replies(*texts), vote(4))
    with served.client() as client:
        answer = client.chat.completions.create(**ASK, extra_body={"scaffolding": {"trace": True}})
    (choice,) = answer.choices
    (made,) = choice.message.tool_calls
    assert json.loads(made.function.arguments) == {"city": "Paris", "days": 2}
    assert choice.message.content is None
    assert choice.message.reasoning_content == "One way."
    assert choice.scaffolding["answer"] == '[{"arguments":{"city":"Paris","days":2},"name":"weather"}]'
    (event,) = (event for event in choice.scaffolding["trace"] if event["event"] == "vote")
    assert event["classes"] == [0, 1, 2, 1]


def test_words_may_win_against_calls_and_broken_calls_have_no_vote(serve: Any) -> None:
    texts = ["<tool_call>{broken", call("Rome"), "It is sunny.", "It is sunny.", call("Rome") + call("Rome")]
    served = serve(replies(*texts), vote(5, "instruct"))
    with served.client() as client:
        (choice,) = client.chat.completions.create(**ASK, extra_body={"scaffolding": {"trace": True}}).choices
    assert (choice.finish_reason, choice.message.content) == ("stop", "It is sunny.")
    assert choice.message.tool_calls is None
    (event,) = (event for event in choice.scaffolding["trace"] if event["event"] == "vote")
    assert event["classes"] == [-1, 0, 1, 1, 2]


def test_a_tools_result_goes_to_the_model(serve: Any) -> None:
    served = serve("It is sunny.", prompted(NativeGenerationController(), "instruct"))
    messages: Any = [
        {"role": "user", "content": "How is it in Paris?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    with served.client() as client:
        (choice,) = client.chat.completions.create(model="model", messages=messages, tools=TOOLS).choices
    assert choice.message.content == "It is sunny."
    (task,) = served.worker.tasks
    expected = "user: How is it in Paris?; assistant: CALL weather Paris; tool: sunnyFOR c1; assistant: "
    assert task.input_str.endswith(f"; {expected}")


@pytest.mark.parametrize("stream", [False, True])
def test_without_parallel_calls_the_first_is_kept(serve: Any, stream: bool) -> None:
    served = serve(thinking(call("Paris") + call("Rome")), prompted(NativeGenerationController()))
    with served.client() as client:
        said = client.chat.completions.create(**ASK, parallel_tool_calls=False, stream=stream)
        deltas = [chunk.choices[0].delta for chunk in said] if stream else [said.choices[0].message]
    made = [each for delta in deltas for each in delta.tool_calls or ()]
    assert [json.loads(each.function.arguments) for each in made] == [{"city": "Paris"}]


def test_a_stream_tells_calls_when_they_are_whole(serve: Any) -> None:
    served = serve(thinking(call("Paris")), prompted(NativeGenerationController()))
    with served.client() as client:
        chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**ASK, stream=True)]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == ""
    assert "".join(getattr(chunk.delta, "reasoning_content", None) or "" for chunk in chunks)
    (told,) = (chunk.delta.tool_calls for chunk in chunks if chunk.delta.tool_calls)
    assert (told[0].index, told[0].function.name) == (0, "weather")
    assert json.loads(told[0].function.arguments) == {"city": "Paris"}
    assert chunks[-1].finish_reason == "tool_calls"


def test_tool_choice_none_tells_the_model_of_none(serve: Any) -> None:
    served = serve(call("Paris"), prompted(NativeGenerationController(), "instruct"))
    with served.client() as client:
        (choice,) = client.chat.completions.create(**ASK, tool_choice="none").choices
    assert choice.finish_reason == "stop"
    assert choice.message.content == call("Paris")
    assert "TOOLS" not in served.worker.tasks[0].input_str


@pytest.mark.parametrize(
    ("make", "more", "param"),
    [
        (lambda: prompted(DynasorCoTController()), {}, "tools"),
        (NativeGenerationController, {}, "tools"),
        (lambda: prompted(NativeGenerationController()), {"tool_choice": "required"}, "tool_choice"),
        (
            lambda: prompted(NativeGenerationController()),
            {"extra_body": {"thinking_budget": 8}},
            "thinking_budget",
        ),
        (
            lambda: prompted(NativeGenerationController()),
            {"tools": [{**TOOLS[0], "function": {**TOOLS[0]["function"], "strict": True}}]},
            "tools",
        ),
    ],
)
def test_what_cannot_call_tools_is_refused_by_name(serve: Any, make: Any, more: Any, param: str) -> None:
    served = serve("sunny", make())
    with served.client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**(ASK | more))
    assert caught.value.param == param


def test_a_model_that_says_nothing_is_asked_with_its_tools_before_it(serve: Any) -> None:
    served = serve(replies("Hm.", call("Paris")), prompted(NativeGenerationController()))
    with served.client() as client:
        (choice,) = client.chat.completions.create(**ASK).choices
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {"city": "Paris"}
    first, second = (task.input_str for task in served.worker.tasks)
    assert second.startswith(f"{first}Hm.")
    assert "TOOLS" in first


def test_a_chosen_sample_keeps_its_call(serve: Any) -> None:
    best = BestOfNController(
        NativeGenerationController({"temperature": 0.7}), default_sample_num=2, reward=lambda sample: sample.index
    )
    served = serve(replies(call("Rome"), call("Paris")), prompted(best, "instruct"))
    with served.client() as client:
        (choice,) = client.chat.completions.create(**ASK).choices
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {"city": "Paris"}
