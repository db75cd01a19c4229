"""Chats on every worker that generates: the model's template makes the prompt, and the answer is the next message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol import (
    ChatTask,
    DropKVCacheTask,
    GenerationTask,
    SystemMessage,
    TaskStatus,
    TokenizeTask,
    UserMessage,
)
from scaffolding_ext.request.program import Program, enter_program
from tests.servers.openai_server import OpenAIServer

pytest.importorskip("torch")
pytest.importorskip("openai")
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker
from scaffolding_ext.workers.openai.worker import OpenAIWorker

MODEL = "tinylm/draft"
QUESTION = "Start with 5. Apply a+3,b-2. Find the total."


@pytest.fixture(scope="module")
def model() -> Iterator[HuggingFaceWorker]:
    with HuggingFaceWorker(MODEL, max_batch_size=4) as worker:
        yield worker


@pytest.fixture(scope="module", params=["huggingface", "completions", "chat"])
def worker(request: pytest.FixtureRequest, model: HuggingFaceWorker) -> Iterator[Any]:
    if request.param == "huggingface":
        yield model
        return
    with OpenAIServer(model, MODEL) as server, OpenAIWorker(server.url, MODEL, endpoint=request.param) as made:
        yield made


def run(worker: Any, task: Any) -> Any:
    assert asyncio.run(worker.run_task(task)) is TaskStatus.SUCCESS
    return task


def chat(*messages: Any, **fields: Any) -> ChatTask:
    return ChatTask(messages=list(messages), max_tokens=12, temperature=0.0, **fields)


def test_a_chat_goes_on_message_by_message(worker: Any, model: HuggingFaceWorker) -> None:
    task = run(worker, chat(UserMessage(QUESTION), enable_token_counting=True))
    plain = GenerationTask(input_str=QUESTION, max_tokens=12, temperature=0.0)
    Prompting.for_model(MODEL).apply(plain)
    if worker.chat_tokenizer() is not None:  # else the server has a template of its own
        assert task.output_str == run(model, plain).output_str
    assert [message.role for message in task.messages] == ["user", "assistant"]
    assert task.messages[-1].content == task.output_str
    assert task.prompt_tokens_num > 0
    assert task.completion_tokens_num == 12
    num_before = task.prompt_tokens_num
    task.add_message(UserMessage("Are you sure?"))
    run(worker, task)
    assert [message.role for message in task.messages] == ["user", "assistant", "user", "assistant"]
    assert task.prompt_tokens_num > num_before + 12  # it has read its own answer


def test_what_a_chat_cannot_have_is_refused_by_name(worker: Any) -> None:
    with pytest.raises(InvalidTaskError, match="messages is empty"):
        run(worker, chat())
    with pytest.raises(InvalidTaskError, match=r"tools is set, but .* takes no tools in a ChatTask"):
        run(worker, chat(UserMessage("q"), tools=[1]))


def test_kv_that_is_of_no_more_use_is_noted(worker: Any) -> None:
    task = DropKVCacheTask(chat(SystemMessage("s"), UserMessage("q")), "generation")
    program = Program()

    async def inside() -> Any:
        enter_program(program)
        return await worker.run_task(task)

    assert asyncio.run(inside()) is TaskStatus.SUCCESS
    assert [(event["event"], event["task"]) for event in program.trace] == [("ignored", "DropKVCacheTask")]


def test_tokens_are_counted(model: HuggingFaceWorker) -> None:
    expected = run(model, GenerationTask(input_str=QUESTION, max_tokens=1, temperature=0.0))
    assert run(model, TokenizeTask(content=QUESTION)).token_count > 5
    assert expected.output_str
