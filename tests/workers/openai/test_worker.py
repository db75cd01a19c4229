"""OpenAIWorker against a real local server that misbehaves on request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
import socket

import pytest

pytest.importorskip("openai")

from scaffolding_ext import NativeGenerationController, ScaffoldingLlm, load_stack
from scaffolding_ext.errors import (
    ConfigError,
    EngineError,
    InvalidTaskError,
    MissingDependencyError,
    NoOutputError,
    TaskError,
)
from scaffolding_ext.protocol import ExecutionScope, GenerationTask, StreamGenerationTask, TaskStatus, current_scope
from scaffolding_ext.protocol.meta import PAUSED, PROBE, TokenCounts, note, token_counts_of
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.request.program import Program, enter_program
from scaffolding_ext.testing import Gate, ScriptedWorker
from scaffolding_ext.workers.openai.worker import OpenAIWorker
from tests.servers.openai_server import OpenAIServer

TEXT = "The answer is 42."
KEY = "sk-a-secret-that-nobody-may-see"


@contextlib.contextmanager
def serving(fault=lambda number, request: None, *, before=None, reply=TEXT, server_options=None, **options):
    """A scripted server and a worker on it."""
    with (
        OpenAIServer(ScriptedWorker(reply, before=before), "m", fault=fault, **(server_options or {})) as server,
        OpenAIWorker(server.url, "m", **{"flavor": "vllm", **options}) as worker,
    ):
        yield server, worker


def generation(**fields):
    return GenerationTask(**{"input_str": "What?", "max_tokens": 50, **fields})


def stream(**fields):
    return StreamGenerationTask(**{"input_str": "What?", "max_tokens": 50, "streaming_step": 1, **fields})


def run(worker, *tasks):
    async def all_of_them():
        return await asyncio.wait_for(asyncio.gather(*map(worker.run_task, tasks), return_exceptions=True), 60)

    return asyncio.run(all_of_them())


def fails(worker, task, kind=EngineError):
    """The error that the task ends in."""
    (error,) = run(worker, task)
    assert isinstance(error, kind), error
    return str(error)


def first(*faults):
    """The first requests go wrong in these ways, later ones not."""
    return lambda number, request: faults[number] if number < len(faults) else None


@pytest.mark.parametrize("fault", ["429", "500", "503", "reset"])
def test_what_fails_before_an_answer_is_tried_again_and_said(fault):
    with serving(first(fault, fault)) as (server, worker):
        program, task = Program(), generation()

        async def scenario():
            enter_program(program)
            await worker.run_task(task)

        asyncio.run(scenario())
        assert task.output_str == TEXT
        assert len(server.requests) == 3
        assert [entry["num_retries"] for entry in program.trace if entry["event"] == "retried"] == [2]


@pytest.mark.parametrize(
    ("fault", "message", "num_attempts"),
    [
        ("429", r"too busy \(429\): lower max_concurrency", 2),
        ("500", "failed.*told to fail", 2),
        ("reset", "cannot reach ", 2),
        ("garbage", "sent an answer that is not JSON", 1),
        ("401", r"refused the API key \(401\).*OPENAI_API_KEY", 1),
    ],
)
def test_a_failure_is_named(fault, message, num_attempts):
    with serving(lambda number, request: fault, max_retries=1) as (server, worker):
        error = fails(worker, generation())
        assert len(server.requests) == num_attempts

    assert re.search(message, error), error


def test_a_silent_server_runs_into_the_time_out_and_is_told_to_stop():
    from openai import Timeout

    with serving(lambda number, request: "slow", max_retries=0, timeout_seconds=0.05) as (server, worker):
        client = worker._connection._client
        client.timeout = Timeout(60.0, read=0.05)  # to connect and to send takes what it takes
        assert "sent nothing for 0.05 s" in fails(worker, generation())
        server.wait_for_stopped()


def test_a_deadline_holds_for_all_attempts_together():
    options = {"max_retries": 100, "timeout_seconds": 0.02, "deadline_seconds": 0.2}
    with serving(lambda number, request: "slow", **options) as (_, worker):
        assert "did not finish within deadline_seconds (0.2 s)" in fails(worker, generation())


def test_a_stream_that_breaks_off_fails_and_the_trace_says_what_was_lost():
    with serving(first("reset_mid_stream"), max_concurrency=1) as (server, worker):
        program, task = Program(), stream(streaming_step=100)

        async def scenario():
            enter_program(program)
            await worker.run_task(task)

        with pytest.raises(EngineError, match="ended its answer too early"):
            asyncio.run(scenario())
        assert len(server.requests) == 1  # not asked again: tokens had been paid for
        assert [entry["num_tokens"] for entry in program.trace if entry["event"] == "stream_lost"] == [1]
        assert token_counts_of(task).decoded == 1
        assert worker.num_requests == 0
        assert run(worker, generation()) == [TaskStatus.SUCCESS]  # its place is free again


def test_a_refusal_is_the_tasks_fault_and_not_tried_again():
    with serving(server_options={"allowed": frozenset({"model"})}) as (server, worker):
        assert "refused the request" in fails(worker, generation(), InvalidTaskError)
        assert len(server.requests) == 1


def test_a_server_that_is_not_there():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        with pytest.raises(EngineError, match=r"cannot reach .* is the server running\?"):
            OpenAIWorker(url, "m", max_retries=0)


def test_a_cancelled_call_stops_the_server():
    gate = Gate()
    with serving(before=gate) as (server, worker):

        async def scenario():
            call = asyncio.ensure_future(worker.run_task(generation()))
            await asyncio.to_thread(gate.wait_for)
            call.cancel()
            await asyncio.to_thread(server.wait_for_stopped)
            with pytest.raises(asyncio.CancelledError):
                await call

        asyncio.run(scenario())
        gate.open()


@pytest.mark.parametrize("how", ["cancel_flag", "scope"])
def test_a_cancelled_stream_stops_the_server(how):
    """The scripted stream stands at the gate after its first step, until its client has gone."""
    gate, steps = Gate(), []

    async def hold(task):
        steps.append(task)
        if len(steps) > 1 and not task.cancel_flag:
            await gate(task)

    with serving(before=hold) as (server, worker):
        task = stream()

        async def scenario():
            current_scope.set(ExecutionScope("request"))
            await worker.run_task(task)
            assert task.output_str == TEXT[:1]
            if how == "scope":
                await worker.on_scope_end("request")
            else:
                task.cancel_flag = True
                await worker.run_task(task)
            await asyncio.to_thread(server.wait_for_stopped)

        asyncio.run(scenario())
        assert task.end_flag == (how == "cancel_flag")
        assert worker.num_requests == 0
        gate.open()


def test_no_more_requests_at_once_than_allowed():
    gate = Gate()
    with serving(before=gate, max_concurrency=2) as (server, worker):

        async def scenario():
            calls = [asyncio.ensure_future(worker.run_task(generation())) for _ in range(5)]
            await asyncio.to_thread(gate.wait_for, 2)
            assert server.num_running == 2
            gate.open()
            return await asyncio.gather(*calls)

        assert asyncio.run(scenario()) == [TaskStatus.SUCCESS] * 5


def test_shutdown_ends_what_runs_with_an_error():
    gate = Gate()
    with serving(before=gate) as (_, worker):

        async def scenario():
            calls = [asyncio.ensure_future(worker.run_task(task)) for task in (generation(), stream())]
            await asyncio.to_thread(gate.wait_for, 2)
            await asyncio.to_thread(worker.shutdown)
            return await asyncio.gather(*calls, return_exceptions=True)

        errors = asyncio.run(scenario())
        assert isinstance(errors[0], EngineError)
        assert "shut down" in str(errors[0])
        assert isinstance(errors[1], EngineError)
        gate.open()


def test_the_caller_sees_a_text_grow():
    with serving() as (_, worker):
        task = generation(streaming_output_flag=True)
        run(worker, task)
        texts = [output.text for output in task.streaming_output_list]
        assert texts[-1] == task.output_str == TEXT
        assert all(TEXT.startswith(text) for text in texts)
        assert token_counts_of(task) == TokenCounts(len(TEXT), len("What?"))


def test_a_request_says_no_more_than_a_server_needs():
    with serving() as (server, worker):
        run(worker, generation(input_str=None, input_tokens=[5, 6, 7]), stream())
        plain, streamed = server.requests
    assert plain.body["prompt"] == [5, 6, 7]
    assert "stream" not in plain.body
    assert streamed.body["stream"] is True
    told = {name for request in server.requests for name in request.headers if name.startswith("x-stainless")}
    assert told <= {"x-stainless-raw-response"}  # by which the library finds out that it is to give the answer raw


def test_a_key_reaches_no_log_no_record_and_no_error(monkeypatch, caplog):
    monkeypatch.setenv("MY_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    faults = first("401", "500", "garbage", "reset", "429")
    with serving(faults, api_key_env="MY_KEY", max_retries=0) as (server, worker):
        controller = NativeGenerationController({"max_tokens": 5})
        controller.prompting = None
        with pytest.warns(UserWarning, match="without its chat template"):
            llm = ScaffoldingLlm(controller, {"generation": worker})
        with llm:
            seen = [repr(worker), repr(vars(worker))]
            for _ in range(5):
                result = llm.generate_async("What?")
                error = result.exception()
                assert isinstance(error, TaskError)
                while error is not None:
                    seen += [repr(error), str(error), repr(vars(error))]
                    error = error.__cause__ or error.__context__
                seen.append(repr(result.program.trace))
            assert llm.generate("What?").outputs[0].text == TEXT[:5]
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"  # so that it could have leaked
    seen += [record.getMessage() for record in caplog.records]
    assert not [text for text in seen if KEY in text]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_url": "localhost:8000"}, "base_url: is 'localhost:8000'"),
        ({"base_url": "http://me:secret@host/v1"}, "base_url: contains a user name"),
        ({"base_url": "htp://me:secret@host/v1"}, "base_url: contains a user name"),
        (
            {"base_url": "http://host/v1?api_key=secret"},
            "base_url: contains a query, but errors show the address: remove it",
        ),
        ({"base_url": "http://host:port/v1"}, "base_url: is 'http://host:port/v1'"),
        (
            {"api_key_env": "NO_SUCH_KEY"},
            "api_key_env: names the environment variable NO_SUCH_KEY, which is not set: run `export NO_SUCH_KEY=...`",
        ),
        ({"flavor": "vlm"}, "unknown flavor 'vlm'; known: auto, vllm"),
        ({"endpoint": "responses"}, "endpoint: is 'responses'"),
        ({"max_concurrency": 0}, "max_concurrency: is 0"),
        ({"max_retries": -1}, "max_retries: is -1"),
        ({"deadline_seconds": 0}, "deadline_seconds: is 0"),
    ],
)
def test_arguments_are_checked(options, message):
    with pytest.raises(ConfigError) as raised:
        OpenAIWorker(**{"base_url": "http://localhost:1/v1", "model": "m", "flavor": "vllm", **options})
    assert message in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_model_that_is_not_served():
    with (
        OpenAIServer(ScriptedWorker(TEXT), "m") as server,
        pytest.raises(ConfigError, match=r"is 'n', which .* does not serve; it serves: m"),
    ):
        OpenAIWorker(server.url, "n")


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "openai", None)
    with pytest.raises(MissingDependencyError, match=r"\[openai\]"):
        OpenAIWorker("http://localhost:1/v1", "m", flavor="vllm")


PROBING = {
    "DynasorCoTController": {"max_tokens": 30, "rule": "consecutive", "chunk_size": 4, "mode": "chunk"},
    "BudgetForcingController": {"thinking_tokens": 30},
}


def chat_stack(server, name, **options):
    args = {"base_url": server.url, "model": "m", "endpoint": "chat", **options}
    return {
        "controller": {"type": name, "args": PROBING[name]},
        "workers": {"generation": {"type": "OpenAIWorker", "args": args}},
    }


@pytest.mark.parametrize("name", PROBING)
@pytest.mark.parametrize("options", [{}, {"flavor": "trtllm"}])
def test_a_chat_server_that_cannot_go_on_with_an_answer_is_refused_by_name(name, options):
    with (
        OpenAIServer(ScriptedWorker(TEXT), "m", keeps_turns_open=False) as server,
        pytest.raises(ConfigError, match=f"cannot continue an unfinished answer, which {name} needs: "),
    ):
        load_stack(chat_stack(server, name, **options))


def test_a_chat_server_that_goes_on_is_probed():
    with (
        OpenAIServer(ScriptedWorker(TEXT), "m") as server,
        load_stack(chat_stack(server, "DynasorCoTController")) as llm,
    ):
        llm.generate("What?")
        probes = [r.body["messages"] for r in server.requests if len(r.body.get("messages", ())) == 2]
        assert probes[-1][0] == {"role": "user", "content": "What?"}
        assert probes[-1][1]["role"] == "assistant"
        assert probes[-1][1]["content"].startswith(TEXT[:4])
        assert probes[-1][1]["content"].endswith("\\boxed{")


# The embedded model behind the server, so that scores are a model's own.


@pytest.fixture(scope="module")
def model():
    pytest.importorskip("torch")
    from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

    with HuggingFaceWorker("tinylm/draft", enable_block_reuse=False) as worker:
        yield worker


@pytest.mark.parametrize(("fault", "word"), [("early", "early"), ("late", "late")])
@pytest.mark.parametrize("flavor", ["auto", "vllm"])
def test_scores_that_are_off_by_one_are_found_out(model, flavor, fault, word):
    def shift(number, request):
        return fault if request.body.get("echo") else None

    with (
        OpenAIServer(model, "tinylm/draft", fault=shift) as server,
        OpenAIWorker(server.url, "tinylm/draft", flavor=flavor) as worker,
    ):
        task = ScoreTask(input_tokens=[5, 6, 7], continuation_tokens=[8, 9])
        if flavor == "auto":  # found out at the start: a stack that needs scores is refused
            assert ScoreTask not in worker.task_handlers
            assert f"come one token too {word}" in worker.refused["ScoreTask"]
            refusal = fails(worker, task, InvalidTaskError)
            assert refusal.endswith(worker.refused["ScoreTask"])
        else:
            assert f"come one token too {word}" in fails(worker, task)


@pytest.mark.parametrize("flavor", ["vllm", "llama_cpp"])
def test_log_probs_are_the_models_own(model, flavor):
    fields = {"input_tokens": [5, 6, 7, 8], "max_tokens": 12, "num_logprobs": 3, "temperature": 1.0, "seed": 4}
    with (
        OpenAIServer(model, "tinylm/draft", flavor=flavor) as server,
        OpenAIWorker(server.url, "tinylm/draft") as worker,
    ):
        assert worker.max_num_logprobs == 20
        here, there = GenerationTask(**fields), GenerationTask(**fields)
        run(model, here)
        run(worker, there)
        assert there.output_tokens == here.output_tokens
        for mine, theirs in zip(here.logprobs, there.logprobs, strict=True):
            assert {token: entry.logprob for token, entry in theirs.items()} == pytest.approx(
                {token: entry.logprob for token, entry in mine.items()}
            )


def test_a_server_without_token_ids_serves_no_streams(model):
    with (
        OpenAIServer(model, "m", flavor="openai") as server,
        OpenAIWorker(server.url, "m", flavor="openai", tokenizer="tinylm/draft") as worker,
    ):
        assert StreamGenerationTask not in worker.task_handlers
        task = GenerationTask(input_str="Start with 5.", max_tokens=5, temperature=0.0)
        run(worker, task)
        assert task.output_str
        assert task.output_tokens is None
        assert token_counts_of(task).decoded == 5


def test_an_older_server_without_the_ids_of_its_kind_is_named(model):
    with (
        OpenAIServer(model, "m", flavor="openai") as server,
        OpenAIWorker(server.url, "m", flavor="vllm") as worker,
    ):
        assert "returns no token ids" in fails(
            worker, GenerationTask(input_str="Start with 5.", max_tokens=5, temperature=0.0)
        )


# ---- streams that run too far ahead, or past their end


def test_a_stream_past_its_max_tokens_is_given_up():
    def ignore_limit(number, request):
        request.body["max_tokens"] = 100_000

    with serving(ignore_limit, reply="1 " * 5000) as (_, worker):
        error = fails(worker, stream(max_tokens=20, streaming_step=500))
    assert re.search(r"the server sent 1\d\d tokens and goes on, though max_tokens is 20", error)


def test_a_stream_that_is_too_far_ahead_is_given_up_at_the_server(model):
    with (
        OpenAIServer(model, "tinylm/draft") as server,
        OpenAIWorker(server.url, "tinylm/draft", flavor="vllm") as worker,
    ):
        task = StreamGenerationTask(
            input_tokens=[5, 6, 7], max_tokens=1900, streaming_step=2, ignore_eos=True, temperature=0.0
        )
        note(task, may_run_to=6)

        async def scenario():
            await worker.run_task(task)
            await asyncio.to_thread(server.wait_for_stopped)
            await worker.run_task(task)

        asyncio.run(asyncio.wait_for(scenario(), 60))
        assert (task.end_flag, task.finish_reason) == (True, PAUSED)
        assert 6 <= len(task.output_tokens) < 1900
        assert worker._streams == {}


@pytest.mark.parametrize("limit", [None, 10_000])
def test_a_stream_within_its_bound_is_read_to_its_end(limit):
    with serving(reply="word " * 20) as (server, worker):
        task = stream(max_tokens=1000, streaming_step=1000)
        note(task, may_run_to=limit)
        run(worker, task)
        assert task.output_str == "word " * 20
        assert task.finish_reason == "stop"
        assert server.num_stopped == 0


def test_a_stream_to_a_caller_is_never_given_up():
    with serving(reply="word " * 20) as (server, worker):
        task = stream(max_tokens=1000, streaming_step=1, streaming_output_flag=True)
        note(task, may_run_to=2)
        while not task.end_flag:
            run(worker, task)
        assert task.output_str == "word " * 20
        assert server.num_stopped == 0


@pytest.mark.parametrize(("flavor", "urgent"), [("vllm", -1), ("sglang", 1), ("trtllm", 1.0)])
def test_the_server_is_told_of_what_others_wait_for_where_that_is_asked(flavor, urgent):
    def priorities(**options):
        served = {"flavor": flavor, "by_priority": True}
        with serving(flavor=flavor, tokenizer="tinylm/draft", server_options=served, **options) as (server, worker):
            probe = generation()
            note(probe, purpose=PROBE)
            run(worker, probe, generation())
            return sorted(str(request.body.get("priority")) for request in server.requests)

    assert priorities() == ["None", "None"]
    assert priorities(prioritize=True) == sorted([str(urgent), "None"])


def test_a_server_without_priorities_is_told_of_none():
    with pytest.raises(ConfigError, match="'llama_cpp' take no priority") as caught:
        OpenAIWorker("http://127.0.0.1:1/v1", "m", flavor="llama_cpp", prioritize=True)
    assert caught.value.key == "prioritize"


@pytest.mark.parametrize("make", [generation, stream])
def test_answers_that_a_filter_keeps_back_do_not_open_the_circuit(make):
    with serving(lambda number, request: "filter" if number < 12 else None, max_retries=0, max_concurrency=2) as (
        _,
        worker,
    ):
        for _ in range(12):
            assert "content_filter" in fails(worker, make(streaming_step=99) if make is stream else make())
        task = generation()
        assert run(worker, task) == [TaskStatus.SUCCESS]
        assert task.output_str == TEXT


def test_a_key_may_end_in_a_line_break(monkeypatch):
    monkeypatch.setenv("MY_KEY", f"{KEY}\n")
    with serving(api_key_env="MY_KEY") as (server, worker):
        task = generation()
        assert run(worker, task) == [TaskStatus.SUCCESS]
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


def test_a_stopped_server_does_not_hold_the_start_for_ever():
    with socket.create_server(("127.0.0.1", 0)) as stopped:  # it takes connections, and nobody answers
        url = f"http://127.0.0.1:{stopped.getsockname()[1]}/v1"
        with pytest.raises(EngineError, match=rf"{url} did not answer within start_seconds \(0\.2 s\)"):
            OpenAIWorker(url, "m", start_seconds=0.2)


@pytest.mark.parametrize("kind", [generation, stream])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_log_probability_that_is_no_number_is_no_output(kind, value):
    broken = ScriptedWorker(TEXT, logprobs=lambda task, index: {ord(TEXT[index]): value})
    with OpenAIServer(broken, "m") as server, OpenAIWorker(server.url, "m", flavor="vllm") as worker:
        message = fails(worker, kind(num_logprobs=1), NoOutputError)
        assert f"returned the impossible log-probability {value}" in message
        assert len(server.requests) == 1
        assert run(worker, generation()) == [TaskStatus.SUCCESS]  # the server itself works
