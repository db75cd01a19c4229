"""A call that must come: guided by its tool's schema on workers that keep JSON, refused by name on others."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.tokenizers import load_tokenizer
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.workers.openai.worker import OpenAIWorker
from tests.servers.openai_server import OpenAIServer
from tests.serving.test_response_format import Guided
from tests.serving.test_tool_calls import ASK, TOOLS, prompted, replies, vote

CITY = TOOLS[0]["function"]["parameters"]
TIME: Any = {"type": "function", "function": {"name": "time", "strict": True}}
NAMED: Any = {"type": "function", "function": {"name": "weather"}}
ARGUMENTS = '{"city": "Paris", "days": 2}'
CALL = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'


def object_of(name: str, arguments: Any) -> dict[str, Any]:
    properties = {"name": {"const": name}, "arguments": arguments}
    required = ["name", "arguments"]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
ANY = {"anyOf": [object_of("weather", CITY), object_of("time", NO_ARGUMENTS)]}
CASES = [(NAMED, ARGUMENTS, CITY), ("required", CALL, ANY)]


def plain() -> Any:
    return prompted(NativeGenerationController(), "instruct")


def refusal(served: Any, **fields: Any) -> tuple[str | None, str]:
    with served.client() as client, pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**(ASK | fields))
    return refused.value.param, refused.value.body["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("flavor", ["vllm", "trtllm"])
@pytest.mark.parametrize(("choice", "text", "schema"), CASES)
def test_the_server_guides_the_answer_which_becomes_the_call(
    serve: Any, choice: Any, text: str, schema: Any, flavor: str, stream: bool
) -> None:
    ids = load_tokenizer("tinylm/draft")(text).input_ids
    reply: Any = ids if flavor == "trtllm" else text  # trtllm-serve answers in ids
    with (
        OpenAIServer(ScriptedWorker(lambda task: reply), "m", flavor=flavor) as server,
        OpenAIWorker(server.url, "m", tokenizer="tinylm/draft", flavor=flavor, max_seq_len=512) as worker,
    ):
        served = serve(controller=plain(), model_worker=worker)
        asked: Any = ASK | {"tools": [*TOOLS, TIME], "tool_choice": choice, "stream": stream}
        if stream:
            asked["stream_options"] = {"include_usage": True}
        with served.client() as client:
            said = client.chat.completions.create(**asked)
            parts = list(said) if stream else [said]
        (body,) = [request.body for request in server.requests if "prompt" in request.body]
    choices = [part.choices[0] for part in parts if part.choices]
    messages = [each.delta if stream else each.message for each in choices]
    assert body["response_format"]["json_schema"]["schema"] == schema
    (made,) = [call for message in messages for call in message.tool_calls or ()]
    assert (made.function.name, json.loads(made.function.arguments)) == ("weather", {"city": "Paris", "days": 2})
    assert "".join(message.content or "" for message in messages) == ""
    assert choices[-1].finish_reason == "tool_calls"
    usage = parts[-1].usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 0


@pytest.mark.parametrize(("choice", "text", "schema"), CASES)
def test_votes_count_equal_required_calls_as_one(serve: Any, choice: Any, text: str, schema: Any) -> None:
    others = [text.replace("Paris", "Rome"), text.replace(": 2", ":  2.0"), text]
    worker = Guided(replies(*others))
    served = serve(controller=prompted(vote(3), "instruct"), model_worker=worker)
    with served.client() as client:
        answer = client.chat.completions.create(**(ASK | {"tools": [*TOOLS, TIME], "tool_choice": choice}))
    (made,) = answer.choices[0].message.tool_calls
    assert json.loads(made.function.arguments) == {"city": "Paris", "days": 2}
    assert answer.choices[0].scaffolding["answer"] == '[{"arguments":{"city":"Paris","days":2},"name":"weather"}]'
    assert [task.custom_input_params for task in worker.tasks] == [{"guided_decoding": {"json": schema}}] * 3


def test_references_in_a_schema_lead_to_it(serve: Any) -> None:
    """Also if several tools have a definition of one name."""
    tools = [
        {
            "type": "function",
            "function": {
                "name": name,
                "parameters": {
                    "type": "object",
                    "properties": {"x": {"$ref": "#/$defs/X"}},
                    "$defs": {"X": {"type": kind}},
                },
            },
        }
        for name, kind in (("f", "string"), ("g", "integer"))
    ]
    worker = Guided('{"name": "g", "arguments": {"x": 1}}')
    served = serve(controller=plain(), model_worker=worker)
    with served.client() as client:
        client.chat.completions.create(**(ASK | {"tools": tools, "tool_choice": "required"}))
    jsonschema = pytest.importorskip("jsonschema")
    is_valid = jsonschema.Draft202012Validator(worker.tasks[0].custom_input_params["guided_decoding"]["json"]).is_valid
    assert is_valid({"name": "g", "arguments": {"x": 1}})
    assert is_valid({"name": "f", "arguments": {"x": "1"}})
    assert not is_valid({"name": "f", "arguments": {"x": 1}})


def test_a_call_that_was_cut_is_text(serve: Any) -> None:
    served = serve(controller=plain(), model_worker=Guided('{"city": "Par'))
    with served.client() as client:
        (choice,) = client.chat.completions.create(**ASK, tool_choice=NAMED).choices
    assert (choice.message.content, choice.message.tool_calls) == ('{"city": "Par', None)


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_what_cannot_be_guided_is_refused(serve: Any, choice: Any) -> None:
    param, message = refusal(serve(controller=plain()), tool_choice=choice)
    assert param == "tool_choice"
    assert "ScriptedWorker of 'model' writes free text. Give 'auto', or serve the stack on an OpenAIWorker" in message
    thinking = serve(controller=prompted(NativeGenerationController()), model_worker=Guided("4"))
    param, message = refusal(thinking, tool_choice=choice)
    assert param == "tool_choice"
    assert "would hold for the thinking of 'model', too" in message
    pieces = serve(controller=prompted(DynasorCoTController(), "instruct"), model_worker=Guided("4"))
    param, message = refusal(pieces, tool_choice=choice)
    assert param == "tool_choice"
    assert "is not a field that 'model' (DynasorCoTController) takes" in message


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": [TIME], "tool_choice": NAMED}, "tool_choice", "the tools are ['time']"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "but no tools are given"),
        ({"tool_choice": "any"}, "tool_choice", 'must be "none", "auto", "required" or {"type"'),
        ({"tool_choice": {"type": "function"}}, "tool_choice", 'must be "none", "auto", "required" or {"type"'),
        ({"tools": [*TOOLS, TIME]}, "tools", "a tool_choice that requires a call"),
        ({"tool_choice": NAMED, "response_format": {"type": "json_object"}}, "response_format", "leave out one"),
    ],
)
def test_a_choice_that_cannot_be_is_refused_by_name(serve: Any, fields: Any, param: str, words: str) -> None:
    served = serve(controller=plain(), model_worker=Guided(ARGUMENTS))
    told, message = refusal(served, **fields)
    assert told == param
    assert words in message


def test_a_controller_takes_a_required_call_itself() -> None:
    controller = prompted(MajorityVoteController(NativeGenerationController({"temperature": 0.7}), 2), "instruct")
    with ScaffoldingLlm(controller, {"generation": Guided(CALL)}) as llm:
        result = llm.generate("How is it in Paris?", tools=TOOLS, tool_choice="required")
    assert result.answer == '[{"arguments":{"city":"Paris","days":2},"name":"weather"}]'
