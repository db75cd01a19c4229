"""The official client, unchanged, against a front on a real socket."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import openai
import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.errors import EngineError, ServerBusyError, ServerRefusalError, ServerTimeoutError
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.request.program import record
from scaffolding_ext.serving.settings import Limits
from scaffolding_ext.testing import Gate

ASK: dict[str, Any] = {"model": "model", "messages": [{"role": "user", "content": "2+2?"}]}


def content(chunks: list[Any]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_a_chat_has_text_usage_and_what_the_controller_decided(serve: Any) -> None:
    with serve().client() as client:
        answer = client.chat.completions.create(**ASK)
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("It is \\boxed{4}.", "stop")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (4, 16, 20)
    assert answer.usage.completion_tokens_details.chain_tokens == 16
    assert choice.scaffolding["answer"] == "4"
    assert choice.scaffolding["exit_reason"] == "end"
    assert choice.scaffolding["ledger"]["total"] == {"decoded": 16, "prefilled": 4, "reused": 0}
    assert "trace" not in choice.scaffolding


def test_the_trace_comes_on_request(serve: Any) -> None:
    served = serve(controller=MajorityVoteController(NativeGenerationController({"temperature": 1.0}), 3))
    with served.client() as client:
        answer = client.chat.completions.create(**ASK, extra_body={"scaffolding": {"trace": True}})
    (vote,) = [event for event in answer.choices[0].scaffolding["trace"] if event["event"] == "vote"]
    assert vote["answers"] == ["4", "4"]
    assert answer.choices[0].scaffolding["exit_reason"] == "certain"


def test_the_async_client(serve: Any) -> None:
    served = serve()

    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
            answers = await asyncio.gather(*(client.chat.completions.create(**ASK) for _ in range(8)))
            chunks = [chunk async for chunk in await client.chat.completions.create(**ASK, stream=True)]
        return [*(answer.choices[0].message.content for answer in answers), content(chunks)]

    assert asyncio.run(ask()) == ["It is \\boxed{4}."] * 9


def test_a_stream_sends_text_as_it_grows_and_ends_in_openais_way(serve: Any) -> None:
    gate = Gate()
    with serve("abc" * 50, before=gate).client() as client:
        gate.open()
        chunks = list(client.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True}))
    assert content(chunks) == "abc" * 50
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-2:] == [None, "stop"]
    assert chunks[-2].choices[0].scaffolding["exit_reason"] == "end"
    assert not chunks[-1].choices
    assert chunks[-1].usage.completion_tokens == 150


def test_choices_are_the_epochs_of_one_seed(serve: Any) -> None:
    served = serve(lambda task: f"seed {task.seed}", host={"seed": 5})
    with served.client() as client:
        answer = client.chat.completions.create(**ASK, n=3, seed=7)
        streamed = list(client.chat.completions.create(**ASK, n=3, seed=7, stream=True))
    told = [
        served.stack.llm.generate("2+2?", seed=7, epoch=epoch, controller=served.stack.controller, most_tokens=99)
        .outputs[0]
        .text
        for epoch in range(3)
    ]
    assert [choice.message.content for choice in answer.choices] == told
    for index, text in enumerate(told):
        assert content([chunk for chunk in streamed if chunk.choices and chunk.choices[0].index == index]) == text
    assert len(set(told)) == 3
    assert answer.usage.prompt_tokens == 4


def test_a_request_without_a_seed_says_which_it_was_given(serve: Any) -> None:
    with serve(lambda task: f"seed {task.seed}", host={"seed": 5}).client() as client:
        first, second = (client.chat.completions.create(**ASK).choices[0] for _ in range(2))
        again = client.chat.completions.create(**ASK, seed=second.scaffolding["seed"]).choices[0]
    assert first.message.content != second.message.content
    assert again.message.content == second.message.content
    assert second.scaffolding["seed"] < 2**53


def test_completions_take_prompts_as_they_are(serve: Any) -> None:
    served = serve(lambda task: task.input_str.upper())
    with served.client() as client:
        answer = client.completions.create(model="model", prompt=["one", "two"], n=2, max_tokens=2)
        chunks = list(client.completions.create(model="model", prompt="three", stream=True))
    assert [choice.text for choice in answer.choices] == ["ON", "ON", "TW", "TW"]
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    assert "".join(chunk.choices[0].text for chunk in chunks) == "THREE"


def test_errors_have_names_and_statuses(serve: Any) -> None:
    def reply(task: Any) -> Any:
        return EngineError("http://10.0.0.7 is gone, and the prompt was 2+2?")

    with serve(reply).client() as client:
        with pytest.raises(openai.NotFoundError) as unknown:
            client.chat.completions.create(**ASK | {"model": "../etc/passwd"})
        with pytest.raises(openai.BadRequestError, match="need a chat server") as refused:
            client.chat.completions.create(**ASK, tools=[{"type": "function", "function": {"name": "f"}}])
        with pytest.raises(openai.InternalServerError) as failed:
            client.chat.completions.create(**ASK)
    assert (unknown.value.code, failed.value.code) == ("model_not_found", "engine_error")
    assert refused.value.param == "tools"
    assert failed.value.status_code == 502
    assert "10.0.0.7" not in str(failed.value)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ServerBusyError("http://10.0.0.7 was too busy", 6.2), 429, "engine_busy"),
        (ServerTimeoutError("http://10.0.0.7 sent nothing for 60 s"), 504, "timeout"),
        (ServerRefusalError("http://10.0.0.7 refused the request: 2+2?"), 400, "unsupported_value"),
    ],
)
def test_what_the_server_behind_says_stays_in_the_log(
    serve: Any, caplog: pytest.LogCaptureFixture, error: Exception, status: int, code: str
) -> None:
    with serve(lambda task: error).client() as client, pytest.raises(openai.APIStatusError) as failed:
        client.chat.completions.create(**ASK)
    assert (failed.value.status_code, failed.value.code) == (status, code)
    assert failed.value.response.headers.get("retry-after") == ("7" if status == 429 else None)
    assert "10.0.0.7" not in str(failed.value)
    assert "10.0.0.7" in caplog.text


def test_responses_are_not_served_and_the_refusal_says_what_to_set(serve: Any) -> None:
    with serve().client() as client, pytest.raises(openai.NotFoundError, match="use_responses_api=False"):
        client.responses.create(model="model", input="2+2?")


def test_a_failure_before_any_text_has_a_status_in_streams_too(serve: Any) -> None:
    with serve(lambda task: EngineError("gone")).client() as client, pytest.raises(openai.InternalServerError):
        client.chat.completions.create(**ASK, stream=True)


def test_a_failure_in_mid_stream_is_told_in_the_stream(serve: Any) -> None:
    gate = Gate()
    texts = {"one": "first", "two": EngineError("gone")}

    async def hold(task: Any) -> None:
        if task.input_str == "two":
            await gate(task)

    served = serve(lambda task: texts[task.input_str], before=hold)
    with served.client() as client:
        seen = []

        def read() -> None:
            for chunk in client.completions.create(model="model", prompt=["one", "two"], stream=True):
                seen.append(chunk.choices[0].text)
                if "".join(seen) == "first":
                    gate.open()

        with pytest.raises(openai.APIError, match="the engine of the stack failed"):
            read()
    assert "".join(seen) == "first"


def test_a_time_out_of_the_server_has_a_name_and_is_not_tried_again(serve: Any) -> None:
    served = serve(before=Gate(), limits=Limits(max_seconds=0.05))
    with served.client(max_retries=2) as client, pytest.raises(openai.InternalServerError) as failed:
        client.chat.completions.create(**ASK)
    assert (failed.value.status_code, failed.value.code) == (504, "timeout")
    assert len(served.worker.tasks) == 1


def test_models_are_the_stacks(serve: Any) -> None:
    with serve().client() as client:
        assert [model.id for model in client.models.list()] == ["model"]
        assert client.models.retrieve("model").scaffolding == {"controller": "NativeGenerationController"}
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("nobody")


@pytest.fixture(scope="module")
def thinking() -> Prompting:
    return Prompting.for_model("tinylm/target")


def test_thinking_stands_apart_and_turns_are_rendered(serve: Any, thinking: Prompting) -> None:
    controller = NativeGenerationController()
    controller.prompting = thinking
    served = serve("I think.</think>\nIt is 4.", controller)
    turns = [("developer", "Be brief."), ("user", "1+1?"), ("assistant", "2"), ("user", "2+2?")]
    messages = [{"role": role, "content": text} for role, text in turns]
    with served.client() as client:
        answer = client.chat.completions.create(model="model", messages=messages, stop=["4"])
        chunks = list(client.chat.completions.create(model="model", messages=messages, stream=True))
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("I think.", "It is ")
    assert content(chunks) == "It is 4."
    assert "".join(getattr(chunk.choices[0].delta, "reasoning_content", None) or "" for chunk in chunks) == "I think."
    rendered = served.worker.tasks[0].input_str
    assert rendered == "<|user|>Be brief.<|user|>1+1?<|assistant|>2<|end|><|user|>2+2?<|assistant|><think>\n"
    assert answer.usage.prompt_tokens == len(served.worker.tasks[0].input_tokens)


def test_a_trace_may_hold_numbers_of_numpy(serve: Any) -> None:
    class Records(NativeGenerationController):
        def process(self, tasks: list[Any], **kwargs: Any) -> Any:
            record("stop", confidence=np.float32(0.5))
            yield from super().process(tasks, **kwargs)

    with serve(controller=Records()).client() as client:
        for stream in (False, True):
            answer = client.chat.completions.create(**ASK, stream=stream, extra_body={"scaffolding": {"trace": True}})
            choice = list(answer)[-1].choices[0] if stream else answer.choices[0]
            assert [event["confidence"] for event in choice.scaffolding["trace"]] == [0.5]
