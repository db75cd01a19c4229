"""Tools over the front of a chat server: they pass through, calls come back, and a vote counts equal calls as one."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterator
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
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.workers.openai.worker import OpenAIWorker
from tests.servers.openai_server import OpenAIServer

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
ASK: Any = {
    "model": "model",
    "messages": [{"role": "user", "content": "How is it in Paris?"}],
    "tools": TOOLS,
    "max_tokens": 400,
}
NAMED: Any = {"type": "function", "function": {"name": "weather"}}
TURNS: Any = [
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


def calls(*cities: str, **more: Any) -> str:
    """Calls as the double of a server tells them."""
    return json.dumps([{"name": "weather", "arguments": {**more, "city": city}} for city in cities])


def prompted(controller: Any, family: str = "deepseek_r1") -> Controller:
    """A controller whose prompts are rendered here, for a worker that takes token ids."""
    tokenizer = copy.deepcopy(load_tokenizer("tinylm/draft"))
    tokenizer.chat_template = TEMPLATE
    opens = "<think>\n" if family == "deepseek_r1" else None
    controller.prompting = Prompting(tokenizer, family, assistant_prefix=opens)
    return controller  # type: ignore[no-any-return]


def vote(num: int) -> Any:
    return MajorityVoteController(NativeGenerationController({"temperature": 0.7}), num, allocation=None)


def replies(*texts: str) -> Callable[[Any], str]:
    left = list(texts)
    return lambda task: left.pop(0)


class OverChat:
    """A front over the double of a chat server."""

    def __init__(self, serve: Any) -> None:
        self._serve = serve
        self.has_prompting = True
        self.servers: list[OpenAIServer] = []
        self.workers: list[OpenAIWorker] = []

    def __call__(self, controller: Any, *texts: str) -> Any:
        server = OpenAIServer(ScriptedWorker(replies(*texts)), "m", flavor="vllm").__enter__()
        self.servers.append(server)
        self.workers.append(OpenAIWorker(server.url, "m", flavor="vllm", endpoint="chat"))
        controller.prompting = Prompting(chat=True) if self.has_prompting else None
        return self._serve(controller=controller, model_worker=self.workers[-1])

    @property
    def bodies(self) -> list[Any]:
        """The requests with tools, or with their results."""
        return [request.body for request in self.servers[-1].requests if "messages" in request.body]


@pytest.fixture
def over_chat(serve: Any) -> Iterator[OverChat]:
    found = OverChat(serve)
    yield found
    for worker in found.workers:
        worker.shutdown()
    for server in found.servers:
        server.__exit__(None, None, None)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required", NAMED])
def test_tools_pass_to_the_server_and_its_calls_come_back(over_chat: OverChat, choice: Any, stream: bool) -> None:
    served = over_chat(NativeGenerationController(), calls("Paris", "Rome", days=2.0))
    with served.client() as client:
        said = client.chat.completions.create(**ASK, tool_choice=choice, stream=stream)
        choices = [part.choices[0] for part in said] if stream else [said.choices[0]]
    (body,) = over_chat.bodies
    assert (body["tools"], body["tool_choice"]) == (TOOLS, choice)
    messages = [each.delta if stream else each.message for each in choices]
    assert "".join(message.content or "" for message in messages) == ""
    first, second = (made for message in messages for made in message.tool_calls or ())
    assert (first.type, first.function.name) == ("function", "weather")
    assert [each.function.arguments for each in (first, second)] == [
        '{"days": 2.0, "city": "Paris"}',
        '{"days": 2.0, "city": "Rome"}',
    ]
    assert first.id != second.id
    assert choices[-1].finish_reason == "tool_calls"


def test_the_conversation_s_tool_turns_go_to_the_server(over_chat: OverChat) -> None:
    served = over_chat(NativeGenerationController(), "It is sunny.")
    with served.client() as client:
        (choice,) = client.chat.completions.create(**(ASK | {"messages": TURNS})).choices
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == ("It is sunny.", None, "stop")
    (body,) = over_chat.bodies
    assert [{**message, "content": message["content"] or None} for message in body["messages"]] == TURNS


def test_a_vote_counts_equal_calls_as_one_and_words_beside_them(over_chat: OverChat) -> None:
    texts = calls("Rome"), calls("Paris", days=2.0), "It is sunny.", calls("Paris", days=2)
    served = over_chat(vote(4), *texts)
    with served.client() as client:
        answer = client.chat.completions.create(**ASK, extra_body={"scaffolding": {"trace": True}})
    (choice,) = answer.choices
    (made,) = choice.message.tool_calls
    assert json.loads(made.function.arguments) == {"city": "Paris", "days": 2}
    assert choice.scaffolding["answer"] == '[{"arguments":{"city":"Paris","days":2},"name":"weather"}]'
    (event,) = (event for event in choice.scaffolding["trace"] if event["event"] == "vote")
    assert sorted(Counter(event["classes"]).values()) == [1, 1, 2]  # samples may reach the server in any order


def test_a_chosen_sample_keeps_its_call(over_chat: OverChat) -> None:
    best = BestOfNController(
        NativeGenerationController({"temperature": 0.7}),
        default_sample_num=2,
        reward=lambda sample: "Paris" in sample.answer,
    )
    with over_chat(best, calls("Rome"), calls("Paris")).client() as client:
        (choice,) = client.chat.completions.create(**ASK).choices
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {"city": "Paris"}


def test_without_parallel_calls_the_first_is_kept(over_chat: OverChat) -> None:
    served = over_chat(NativeGenerationController(), calls("Paris", "Rome"))
    with served.client() as client:
        said = client.chat.completions.create(**ASK, parallel_tool_calls=False)
    assert [json.loads(each.function.arguments) for each in said.choices[0].message.tool_calls] == [{"city": "Paris"}]


def test_tool_choice_none_tells_the_server_of_none(over_chat: OverChat) -> None:
    served = over_chat(NativeGenerationController(), calls("Paris"))
    with served.client() as client:
        (choice,) = client.chat.completions.create(**ASK, tool_choice="none").choices
    assert (choice.finish_reason, choice.message.content) == ("stop", calls("Paris"))
    assert "tools" not in over_chat.bodies[0]


@pytest.mark.parametrize(
    ("make", "more", "param"),
    [
        (lambda: prompted(NativeGenerationController()), {}, "tools"),
        (NativeGenerationController, {}, "tools"),
        (lambda: prompted(NativeGenerationController()), {"tool_choice": "required"}, "tool_choice"),
    ],
)
def test_a_worker_without_tools_refuses_them_and_names_those_with(serve: Any, make: Any, more: Any, param: str) -> None:
    with serve("sunny", make()).client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**(ASK | more))
    assert caught.value.param == param
    assert "OpenAIWorker" in str(caught.value)


@pytest.mark.parametrize(
    ("more", "param"), [({}, "tools"), ({"tools": [], "messages": [*ASK["messages"], *ASK["messages"]]}, "messages")]
)
def test_a_chat_server_without_a_prompting_is_told_to_set_one(over_chat: OverChat, more: Any, param: str) -> None:
    over_chat.has_prompting = False
    with over_chat(NativeGenerationController()).client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**(ASK | more))
    assert caught.value.param == param
    assert "set `prompt`" in str(caught.value)


@pytest.mark.parametrize(
    ("make", "more", "param"),
    [
        (DynasorCoTController, {}, "tools"),
        (NativeGenerationController, {"extra_body": {"thinking_budget": 8}}, "thinking_budget"),
    ],
)
def test_what_cannot_go_with_tools_is_refused_by_name(over_chat: OverChat, make: Any, more: Any, param: str) -> None:
    with over_chat(make()).client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**(ASK | more))
    assert caught.value.param == param
