"""A form of the answer is passed on to workers that keep it; what nothing would keep is refused by name."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.prompts.tokenizers import load_tokenizer
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.workers.openai.worker import OpenAIWorker
from tests.servers.openai_server import OpenAIServer

ASK: dict[str, Any] = {"model": "model", "messages": [{"role": "user", "content": "2+2?"}]}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA, "strict": True}}


class Guided(ScriptedWorker):
    """A worker whose engine keeps answers to a schema."""

    guides_json = True


def refusal(served: Any, **fields: Any) -> tuple[str | None, str]:
    with served.client() as client, pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**ASK, **fields)
    return refused.value.param, refused.value.body["message"]


@pytest.mark.parametrize(
    ("given", "guide"), [(FORMAT, {"json": SCHEMA}), ({"type": "json_object"}, {"json_object": True})]
)
@pytest.mark.parametrize("votes", [False, True])
def test_a_form_reaches_a_worker_that_keeps_it(serve: Any, given: Any, guide: dict[str, Any], votes: bool) -> None:
    plain = NativeGenerationController({"temperature": 0.7})
    controller = MajorityVoteController(plain, default_sample_num=2) if votes else plain
    served = serve(controller=controller, model_worker=Guided('{"x": 4}'))
    with served.client() as client:
        answer = client.chat.completions.create(**ASK, response_format=given)
    assert answer.choices[0].message.content == '{"x": 4}'
    worker = served.stack.llm.workers["generation"]
    assert [task.custom_input_params for task in worker.tasks] == [{"guided_decoding": guide}] * (1 + votes)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("flavor", ["vllm", "trtllm"])
def test_a_form_reaches_the_server_behind_the_stack(serve: Any, flavor: str, stream: bool) -> None:
    controller = NativeGenerationController()
    controller.prompting = Prompting(load_tokenizer("tinylm/draft"), "instruct")
    ids = load_tokenizer("tinylm/draft")('{"x": 4}').input_ids
    reply: Any = ids if flavor == "trtllm" else '{"x": 4}'  # trtllm-serve answers in ids
    with (
        OpenAIServer(ScriptedWorker(lambda task: reply), "m", flavor=flavor) as server,
        OpenAIWorker(server.url, "m", tokenizer="tinylm/draft", flavor=flavor, max_seq_len=512) as worker,
    ):
        served = serve(controller=controller, model_worker=worker)
        with served.client() as client:
            answer = client.chat.completions.create(**ASK, response_format=FORMAT, stream=stream)
            told = list(answer) if stream else answer
        assert told
        (body,) = [request.body for request in server.requests if "prompt" in request.body]
    assert body["response_format"]["json_schema"]["schema"] == SCHEMA


def test_an_own_engine_refuses_a_form(serve: Any) -> None:
    param, message = refusal(serve(), response_format=FORMAT)
    assert param == "response_format"
    assert (
        "ScriptedWorker of 'model' writes free text. Leave it out and ask for JSON in the prompt, or serve" in message
    )


def test_a_chain_in_pieces_refuses_a_form(serve: Any) -> None:
    served = serve(controller=DynasorCoTController(), model_worker=Guided("4"))
    param, message = refusal(served, response_format=FORMAT)
    assert param == "response_format"
    assert "is not a field that 'model' (DynasorCoTController) takes" in message


def test_a_thinking_model_refuses_a_form(serve: Any) -> None:
    controller = NativeGenerationController()
    controller.prompting = Prompting.for_model("tinylm/target")
    param, message = refusal(serve(controller=controller, model_worker=Guided("4")), response_format=FORMAT)
    assert param == "response_format"
    assert "would hold for the thinking of 'model', too" in message


@pytest.mark.parametrize(
    "format", [{"type": "xml"}, {"type": "json_schema", "json_schema": {"schema": SCHEMA}}, "json"]
)
def test_a_form_that_is_none_is_refused_by_its_path(serve: Any, format: Any) -> None:
    param, _ = refusal(serve(), response_format=format)
    assert param is not None
    assert param.startswith("response_format")


@pytest.mark.parametrize("votes", [False, True])
def test_a_guided_answer_is_asked_for_no_box(serve: Any, votes: bool) -> None:
    plain = NativeGenerationController({"temperature": 0.7})
    controller = MajorityVoteController(plain, default_sample_num=2) if votes else plain
    controller.prompting = Prompting(load_tokenizer("tinylm/draft"), "instruct", prompt_suffix="\nUse a box.")
    served = serve(controller=controller, model_worker=Guided('{"x": 4}'))
    with served.client() as client:
        client.chat.completions.create(**ASK, response_format=FORMAT)
        guided = list(served.worker.tasks)
        client.chat.completions.create(**ASK)
    assert not any("box" in task.input_str for task in guided)
    assert all("Use a box." in task.input_str for task in served.worker.tasks[len(guided) :])


def test_an_answer_that_is_not_json_is_an_error_unless_it_was_cut(serve: Any) -> None:
    served = serve(model_worker=Guided("It is 4."))
    with served.client() as client:
        with pytest.raises(openai.InternalServerError, match="the model's answer is not JSON"):
            client.chat.completions.create(**ASK, response_format=FORMAT)
        cut = client.chat.completions.create(**ASK, response_format=FORMAT, max_tokens=3).choices[0]
    assert (cut.message.content, cut.finish_reason) == ("It ", "length")
