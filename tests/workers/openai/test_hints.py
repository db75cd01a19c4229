"""Hints go to servers that read them, in the bytes that their sources read, and to no other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("openai")

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import (
    AssistantMessage,
    ChatTask,
    DropKVCacheTask,
    GenerationTask,
    SystemMessage,
    TaskStatus,
    UserMessage,
)
from scaffolding_ext.protocol.meta import CHAIN, PROBE, note
from scaffolding_ext.request.program import Program, enter_program, leave_program
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.workers.openai.hints import Chains
from scaffolding_ext.workers.openai.worker import OpenAIWorker
from tests.servers.openai_server import OpenAIServer
from tests.servers.releases import KV_PATHS

OF_TOKENS, OF_MESSAGES, OLDER = KV_PATHS
TEXT = "The answer is 42."


def server(flavor: str, reply: Any = TEXT, **options: Any) -> OpenAIServer:
    return OpenAIServer(ScriptedWorker(reply), "m", flavor=flavor, max_model_len=4096, **options)


def ask(worker: OpenAIWorker, *tasks: Any) -> list[Any]:
    async def all_of_them() -> list[Any]:
        return list(await asyncio.gather(*map(worker.run_task, tasks)))

    return asyncio.run(all_of_them())


def hinted(task: GenerationTask, flavor: str = "dynamo", **options: Any) -> Any:
    """The request that a task becomes."""
    with (
        server(flavor) as served,
        OpenAIWorker(served.url, "m", flavor=flavor, tokenizer="tinylm/draft", **options) as worker,
    ):
        assert ask(worker, task) == [TaskStatus.SUCCESS]
        (request,) = served.requests
    return request


def probe() -> GenerationTask:
    task = GenerationTask(input_str="What?", max_tokens=20)
    note(task, purpose=PROBE)
    return task


def chunk(**fields: Any) -> GenerationTask:
    task = GenerationTask(input_str="What?", max_tokens=64, **fields)
    note(task, purpose=CHAIN)
    note(task, is_chunk=True)
    return task


def test_a_probe_goes_before_chains_in_dynamos_queue_and_in_its_engine() -> None:
    assert hinted(probe(), prioritize=True).body["nvext"] == {
        "agent_hints": {"priority": 1, "strict_priority": 1, "osl": 20}
    }


def test_chains_go_by_the_age_of_their_request_and_say_that_they_go_on() -> None:
    _, program = Program(), Program()  # of the first one of a process nothing is told: it has the place of all others
    enter_program(program)
    try:
        request = hinted(chunk(), prioritize=True)
    finally:
        leave_program()
    session = request.headers["x-dynamo-session-id"]
    assert request.body["nvext"] == {
        "agent_hints": {"priority": -program.identity.number, "osl": 64, "speculative_prefill": True},
        "agent_context": {"session_type_id": "scaffolding_ext", "session_id": session, "trajectory_id": session},
    }
    assert "priority" not in request.body
    assert session.endswith(f"-{program.identity.number}")
    assert len(session.partition("-")[0]) == 32  # of the process: numbers begin anew in each


def test_without_prioritize_no_order_is_told_and_without_a_request_no_session() -> None:
    request = hinted(probe())
    assert request.body["nvext"] == {"agent_hints": {"osl": 20}}
    assert "x-dynamo-session-id" not in request.headers


@pytest.mark.parametrize("flavor", ["vllm", "sglang", "trtllm", "openai"])
def test_other_servers_get_none_of_it(flavor: str) -> None:
    request = hinted(chunk(input_tokens=[87]), flavor)
    assert "nvext" not in request.body
    assert not any(name.startswith("x-dynamo") for name in request.headers)


def test_a_server_of_dynamo_runs_a_probed_chain_and_a_vote() -> None:
    """All requests of one of ours have one session, and every body is one that Dynamo reads."""

    def reply(task: Any) -> str:
        return "7}" if task.input_str.endswith("{") else "a thought and another. " * 20

    controller = MajorityVoteController(
        DynasorCoTController(chunk_size=16, certainty_threshold=1, max_tokens=64, sampling_params={"temperature": 0.7}),
        2,
        allocation=None,
    )
    controller.prompting = None
    with server("dynamo", reply) as served:
        worker = OpenAIWorker(served.url, "m", flavor="dynamo", endpoint="completions", tokenizer="tinylm/draft")
        worker.model = None
        with ScaffoldingLlm(controller, {"generation": worker}, seed=0, owns_workers=True) as llm:
            results = llm.generate(["How many?", "How few?"])
    assert [result.answer for result in results] == ["7", "7"]
    sessions = {request.headers["x-dynamo-session-id"] for request in served.requests}
    assert len(sessions) == 2
    assert {request.body["nvext"]["agent_context"]["trajectory_id"] for request in served.requests} == sessions
    asked = [request.body["nvext"]["agent_hints"] for request in served.requests]
    assert {hints.get("speculative_prefill") for hints in asked} == {True, None}
    assert {hints["osl"] for hints in asked} >= {16, 20}


def chat(*more: Any) -> ChatTask:
    messages = [SystemMessage("Be short."), UserMessage("How?"), AssistantMessage("So."), *more]
    return ChatTask.create_from_messages(messages)


@pytest.mark.parametrize("path", [OF_MESSAGES, OLDER])
def test_a_chats_kv_is_dropped_where_the_server_was_found_to_do_so(path: str) -> None:
    with server("trtllm", kv_paths=[path]) as served, OpenAIWorker(served.url, "m") as worker:
        assert ask(worker, DropKVCacheTask(chat(), "generation")) == [TaskStatus.SUCCESS]
        served.wait_for_dropped()
    asked = [(request.method, request.path) for request in served.requests if request.path in KV_PATHS]
    assert asked[:3] == [("GET", each) for each in KV_PATHS]
    assert asked[3:] == [("POST", path)]
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "How?"},
        {"role": "assistant", "content": "So."},
    ]
    own = {} if path == OF_MESSAGES else {"action": "truncate"}
    expected = {"model": "m", "messages": messages, "messages_to_retain": messages[:2], **own}
    assert served.requests[-1].body == expected


@pytest.mark.parametrize(
    ("flavor", "named", "paths"), [("trtllm", "auto", []), ("trtllm", "trtllm", [OF_MESSAGES]), ("vllm", "vllm", [])]
)
def test_other_servers_are_told_nothing_of_chats(flavor: str, named: str, paths: list[str]) -> None:
    program = Program()
    with (
        server(flavor, kv_paths=paths) as served,
        OpenAIWorker(served.url, "m", flavor=named, tokenizer="tinylm/draft") as worker,
    ):
        enter_program(program)
        try:
            assert ask(worker, DropKVCacheTask(chat(), "generation")) == [TaskStatus.SUCCESS]
        finally:
            leave_program()
    assert not [request for request in served.requests if request.path in KV_PATHS and request.method == "POST"]
    assert [event["event"] for event in program.trace] == ["ignored"]


def test_a_hint_that_fails_fails_no_request() -> None:
    program = Program()
    broken = chat(UserMessage("and then"))
    broken.messages[0].to_dict = lambda: "no message"  # which the server refuses
    with server("trtllm", kv_paths=[OF_MESSAGES]) as served, OpenAIWorker(served.url, "m") as worker:
        enter_program(program)
        try:
            assert ask(worker, DropKVCacheTask(broken, "generation")) == [TaskStatus.SUCCESS]
        finally:
            leave_program()
    (event,) = program.trace
    assert event["event"] == "ignored"
    assert "messages" in event["error"]


def test_the_chains_of_an_ended_request_are_given_back_but_for_the_prompt() -> None:
    texts = iter(["one way", "another way", "one way", "another way"])
    controller = MajorityVoteController(NativeGenerationController({"temperature": 0.7, "max_tokens": 50}), 2)
    controller.allocation = None
    controller.prompting = None
    with server("trtllm", lambda task: next(texts), kv_paths=[OF_TOKENS]) as served:
        worker = OpenAIWorker(served.url, "m", flavor="trtllm", tokenizer="tinylm/draft", drop_kv=True)
        worker.model = None
        with ScaffoldingLlm(Told(controller), {"generation": worker}, 1, seed=0, owns_workers=True) as llm:
            llm.generate("How?")
            served.wait_for_dropped()
    (told,) = (request.body for request in served.requests if request.path == OF_TOKENS and request.method == "POST")
    prompt = list(map(ord, "How?"))
    written = [prompt + list(map(ord, text)) for text in ("another way", "one way")]
    assert sorted(told["prefixes"]) == sorted(written)
    assert told["num_tokens_to_keep"] == [len(prompt)] * 2
    assert told["model"] == "m"


class Told(NativeGenerationController):
    """Gives its tasks token ids, a character each, as a prompting would."""

    def __init__(self, controller: Any) -> None:
        super().__init__()
        self.controller = controller

    def process(self, tasks: list[Any], **kwargs: Any) -> Any:
        for task in tasks:
            task.input_tokens = list(map(ord, task.input_str))
        yield from self.controller.process(tasks, **kwargs)


def test_the_longest_sequences_stand_for_those_that_they_begin_with() -> None:
    from scaffolding_ext.protocol import ExecutionScope, current_scope

    chains = Chains()
    before = current_scope.set(ExecutionScope("r", (0,)))
    try:
        for read, written in (([1, 2], [3]), ([1, 2, 3], [4, 5]), ([1, 2, 9], [8]), ([1, 2], None)):
            task = GenerationTask(input_tokens=read)
            task.output_tokens = written
            chains.add(task)
    finally:
        current_scope.reset(before)
    assert chains.ended("r:0") is None  # a branch: what goes on behind it may read its KV
    assert chains.ended("r") == ([[1, 2, 3, 4, 5], [1, 2, 9, 8]], 2)
    assert chains.ended("r") is None


def test_a_server_that_cannot_drop_kv_is_refused_by_name() -> None:
    with server("trtllm", kv_paths=[OF_MESSAGES]) as served, pytest.raises(ConfigError, match="drop_kv: is True") as no:
        OpenAIWorker(served.url, "m", flavor="trtllm", drop_kv=True)
    assert OF_TOKENS in str(no.value)
    assert OF_MESSAGES in str(no.value)


def test_nothing_is_asked_of_a_named_server() -> None:
    with server("trtllm", kv_paths=list(KV_PATHS)) as served, OpenAIWorker(served.url, "m", flavor="trtllm"):
        pass
    assert served.requests == []
