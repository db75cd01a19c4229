"""OpenAIWorker on what releases of vLLM, SGLang and trtllm-serve do otherwise: the double does as their sources do."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("openai")
pytest.importorskip("torch")

from scaffolding_ext.controllers.tree.expand import WorkerExpander
from scaffolding_ext.controllers.tree.kv_share_branching import KVShareBranchingController
from scaffolding_ext.errors import ConfigError, EngineError, InvalidTaskError
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, TaskStatus
from scaffolding_ext.protocol.branching import LayerExit, VerifyTask
from scaffolding_ext.protocol.meta import SCORE, note, token_counts_of
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.request.program import Program, enter_program
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker
from scaffolding_ext.workers.openai.worker import OpenAIWorker, ServerWarning
from tests.servers.openai_server import OpenAIServer

MODEL = "tinylm/draft"
THOUGHT = "<think>5 and 3 are 8.</think>The answer is 8."


@pytest.fixture(scope="module")
def model() -> Iterator[HuggingFaceWorker]:
    with HuggingFaceWorker(MODEL, enable_block_reuse=False) as worker:
        yield worker


@contextlib.contextmanager
def serving(worker: Any, flavor: str, *, named: bool = False, **options: Any) -> Iterator[tuple[Any, OpenAIWorker]]:
    """A server of a kind, and a worker that finds out which it is, or is told."""
    own = {key: options.pop(key) for key in ("endpoint", "prioritize") if key in options}
    with (
        OpenAIServer(worker, MODEL, flavor=flavor, **options) as server,
        OpenAIWorker(server.url, MODEL, flavor=flavor if named else "auto", max_retries=0, **own) as client,
    ):
        yield server, client


def run(worker: Any, *tasks: Any, program: Program | None = None) -> None:
    async def to_their_ends() -> None:
        if program is not None:
            enter_program(program)
        for task in tasks:
            assert await asyncio.wait_for(worker.run_task(task), 60) is TaskStatus.SUCCESS
            while not getattr(task, "end_flag", True):
                await asyncio.wait_for(worker.run_task(task), 60)

    asyncio.run(to_their_ends())


def generation(**fields: Any) -> GenerationTask:
    return GenerationTask(**{"input_tokens": [5, 6, 7, 8], "max_tokens": 12, "temperature": 0.0, **fields})


# ---- SGLang


def test_sglang_scores_though_it_must_draw_a_token(model: Any) -> None:
    fields: dict[str, Any] = {"input_tokens": [5, 6, 7], "continuation_tokens": [*range(20, 40)]}
    with serving(model, "sglang") as (_, worker):
        assert "ScoreTask" not in worker.refused
        here, there = ScoreTask(**fields), ScoreTask(**fields)
        run(model, here)
        run(worker, there)
    assert there.logprobs == pytest.approx(here.logprobs, abs=1e-3)
    counts = token_counts_of(there)
    assert counts is not None
    assert counts.decoded == 0


@pytest.mark.parametrize("is_older", [False, True])
def test_sglang_serves_streams_where_its_release_gives_token_ids(model: Any, is_older: bool) -> None:
    with serving(model, "sglang", is_older=is_older) as (_, worker):
        assert (StreamGenerationTask in worker.task_handlers) == (not is_older)
        here, there = generation(), generation()
        run(model, here)
        run(worker, there)
        assert there.output_str == here.output_str
        if is_older:
            assert there.output_tokens is None
            assert "returns no token ids" in worker.refused["StreamGenerationTask"]
            return
        task = StreamGenerationTask(input_tokens=[5, 6, 7, 8], max_tokens=12, streaming_step=5, temperature=0.0)
        run(worker, task)
        assert task.output_tokens == there.output_tokens == here.output_tokens


def test_a_chat_with_sglang_asks_for_no_ids(model: Any) -> None:
    with serving(model, "sglang", endpoint="chat") as (server, worker):
        run(worker, GenerationTask(input_str="Start with 5.", max_tokens=3, temperature=0.0))
        assert "return_token_ids" not in server.requests[-1].body
        assert StreamGenerationTask not in worker.task_handlers


@pytest.mark.parametrize("flavor", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("is_older", [False, True])
@pytest.mark.parametrize("shown", [False, True])
def test_no_thinking_is_lost_to_a_reasoning_parser(flavor: str, is_older: bool, shown: bool) -> None:
    options: dict[str, Any] = {"endpoint": "chat", "reasons": True, "is_older": is_older, "named": True}
    with serving(ScriptedWorker(THOUGHT), flavor, **options) as (_, worker):
        task = GenerationTask(input_str="What?", max_tokens=100, streaming_output_flag=shown, temperature=0.0)
        run(worker, task)
        assert task.output_str == THOUGHT
        cut = GenerationTask(input_str="What?", max_tokens=12, streaming_output_flag=shown, temperature=0.0)
        run(worker, cut)
        # SGLang leaves the text whole on request.
        assert cut.output_str == (THOUGHT[:12] if flavor == "sglang" else "<think>5 and")


# ---- log-probabilities


def test_a_chat_with_vllm_has_all_alternatives(model: Any) -> None:
    fields: dict[str, Any] = {"input_str": "Start with 5.", "max_tokens": 12, "num_logprobs": 4}
    fields |= {"temperature": 2.0, "seed": 4}  # so hot that unlikely tokens are drawn
    with serving(model, "vllm", endpoint="chat") as (_, worker):
        here, there = GenerationTask(**fields), GenerationTask(**fields)
        run(model, here)
        run(worker, there)
    assert there.output_tokens == here.output_tokens
    assert any(token not in sorted(step, key=lambda name: -step[name].logprob)[:4] for token, step in _drawn(here))
    for mine, theirs in zip(here.logprobs, there.logprobs, strict=True):
        assert _highest(theirs, 4) == pytest.approx(_highest(mine, 4))


def _drawn(task: Any) -> Any:
    return zip(task.output_tokens, task.logprobs, strict=True)


def _highest(step: Any, num: int) -> list[float]:
    return sorted((entry.logprob for entry in step.values()), reverse=True)[:num]


def test_more_alternatives_than_a_chat_tells_are_refused_by_name(model: Any) -> None:
    with serving(model, "vllm", endpoint="chat") as (_, worker):
        assert worker.max_num_logprobs == 19
        with pytest.raises(InvalidTaskError, match=r"num_logprobs is 20; .*return at most 19"):
            run(worker, GenerationTask(input_str="Start with 5.", max_tokens=2, num_logprobs=20, temperature=0.0))


@pytest.mark.parametrize("is_older", [False, True])
def test_vllm_tells_the_probability_of_yes_exactly_where_its_release_can(model: Any, is_older: bool) -> None:
    ask = generation(max_tokens=1, num_logprobs=512)
    run(model, ask)
    ranked = sorted(ask.logprobs[0], key=lambda token: -ask.logprobs[0][token].logprob)
    branches = [[5, 6, 7, 8]]
    yes, no = ranked[30], ranked[200]  # both far behind what any list of the likeliest tells
    exact = 1 / (1 + math.exp(ask.logprobs[0][no].logprob - ask.logprobs[0][yes].logprob))
    with serving(model, "vllm", is_older=is_older) as (server, worker):
        task = VerifyTask(branches=branches, yes_token=yes, no_token=no)
        run(worker, task)
        assert server.requests[-1].body["logprob_token_ids"] == [yes, no]
        assert task.scores == pytest.approx([0.5 if is_older else exact], abs=1e-4)
        assert exact != pytest.approx(0.5, abs=0.1)
        with pytest.raises(InvalidTaskError, match="layer_exit is LayerExit"):
            run(worker, VerifyTask(branches=branches, yes_token=yes, no_token=no, layer_exit=LayerExit(1.0, 1.0)))


def test_a_similarity_gate_is_refused_where_a_server_gives_no_hidden_states(model: Any) -> None:
    gated, plain = (
        KVShareBranchingController(
            2,
            expander=WorkerExpander(["A", "B"], phrasings=["{question}", "So {question}"], least_similarity=least),
        )
        for least in (0.9, None)
    )
    with serving(model, "sglang") as (_, worker):
        plain.bind({"generation": worker})
        with pytest.raises(ConfigError, match=r"OpenAIWorker cannot compare hidden states.*a server returns no hidden"):
            gated.bind({"generation": worker})


def test_verdicts_of_other_servers_are_lowered_as_before(model: Any) -> None:
    with serving(model, "sglang") as (_, worker):
        assert VerifyTask not in worker.task_handlers


@pytest.mark.parametrize("is_older", [False, True])
def test_trtllm_serve_is_asked_whether_it_tells_log_probabilities(model: Any, is_older: bool) -> None:
    with serving(model, "trtllm", is_older=is_older) as (_, worker):
        assert worker.max_num_logprobs == (0 if is_older else 1)
        here, there = generation(num_logprobs=1), generation(num_logprobs=1)
        if is_older:
            assert "logprobs is not supported" in worker.refused["num_logprobs"]
            with pytest.raises(InvalidTaskError, match="num_logprobs is 1"):
                run(worker, there)
            run(worker, generation())
            return
        run(model, here)
        run(worker, there)
        assert [step[token].logprob for token, step in _drawn(there)] == pytest.approx(
            [step[token].logprob for token, step in _drawn(here)]
        )


def test_log_probabilities_that_do_not_come_are_an_error() -> None:
    task = GenerationTask(input_str="What?", max_tokens=50, num_logprobs=2, temperature=0.0)
    with (
        serving(ScriptedWorker("The answer is 8."), "vllm", named=True) as (_, worker),
        pytest.raises(EngineError, match="log-probabilities of 0 of 16 tokens"),
    ):
        run(worker, task)


# ---- hints


@pytest.mark.parametrize(
    ("flavor", "endpoint", "taken"),
    [
        *(("vllm", "completions", True), ("vllm", "chat", True), ("sglang", "completions", True)),
        *(("trtllm", "chat", True), ("trtllm", "completions", False), ("llama_cpp", "completions", False)),
    ],
)
def test_a_tasks_cache_salt_is_sent_where_it_is_taken_and_noted_elsewhere(
    model: Any, flavor: str, endpoint: str, taken: bool
) -> None:
    with serving(model, flavor, named=True, endpoint=endpoint) as (server, worker):
        program, task = Program(), GenerationTask(input_str="Start with 5.", max_tokens=3, temperature=0.0)
        task.custom_input_params = {"cache_salt": "ours"}
        run(worker, task, program=program)
        assert [request.body.get("cache_salt") for request in server.requests] == ["ours" if taken else None]
        noted = [entry["what"] for entry in program.trace if entry["event"] == "fallback"]
        assert noted == ([] if taken else ["cache_salt"])


@pytest.mark.parametrize(("flavor", "higher_first"), [("vllm", False), ("trtllm", True)])
def test_what_belongs_to_an_older_program_goes_first(model: Any, flavor: str, higher_first: bool) -> None:
    with serving(model, flavor, named=True, prioritize=True, by_priority=True) as (server, worker):
        older, younger = Program(), Program()
        for program in (younger, older):
            run(worker, generation(max_tokens=1), generation(max_tokens=1), program=program)
        scored = generation(max_tokens=1)
        note(scored, purpose=SCORE)
        run(worker, scored, program=younger)
        sent = [request.body["priority"] for request in server.requests]
    places = [-value for value in sent] if higher_first else sent
    assert places[4] < places[2] == places[3] < places[0] == places[1]


@pytest.mark.parametrize(("flavor", "higher_first"), [("vllm", False), ("trtllm", True)])
def test_programs_go_in_the_order_of_their_policy(model: Any, flavor: str, higher_first: bool) -> None:
    with serving(model, flavor, named=True, prioritize=True, by_priority=True) as (server, worker):
        assert worker.unordered is None
        for place in (7.25, 7.0, 2e7, 2e7 + 1, 0.0):
            program = Program()
            program.place.order = lambda progress, place=place: place  # type: ignore[misc]
            run(worker, generation(max_tokens=1), program=program)
        sent = [request.body.get("priority", 0.5 if higher_first else 0) for request in server.requests]
    places = [-value for value in sent] if higher_first else sent
    assert places[4] < places[1] < places[0] < places[2] < places[3]


@pytest.mark.parametrize(
    ("flavor", "reason"),
    [("openai", "take no priority"), ("sglang", "not the whole order"), ("vllm", "set prioritize")],
)
def test_a_server_that_does_not_order_programs_says_so(flavor: str, reason: str) -> None:
    with OpenAIWorker("http://localhost:1/v1", MODEL, flavor=flavor) as worker:
        assert reason in (worker.unordered or "")


def test_scores_go_first_too_and_with_their_salt(model: Any) -> None:
    with serving(model, "vllm", prioritize=True, by_priority=True) as (server, worker):
        task = ScoreTask(input_tokens=[5, 6, 7], continuation_tokens=[8])
        task.custom_input_params = {"cache_salt": "ours"}
        run(worker, task)
        body = server.requests[-1].body
        assert (body["priority"], body["cache_salt"]) == (-1, "ours")


def test_a_vllm_without_priority_scheduling_refuses_by_name(model: Any) -> None:
    with serving(model, "vllm", named=True, prioritize=True) as (_, worker):
        task = generation()
        note(task, purpose=SCORE)
        with pytest.raises(InvalidTaskError, match="Priority scheduling is not enabled"):
            run(worker, task)


@pytest.mark.parametrize(("flavor", "server"), [("trtllm", {"is_older": True}), ("vllm", {})])
def test_a_server_that_refuses_priorities_is_sent_none(model: Any, flavor: str, server: dict[str, Any]) -> None:
    with OpenAIServer(model, MODEL, flavor=flavor, **server) as served:
        with pytest.warns(ServerWarning, match=r"takes no priority, so none is sent: .*riority"):
            worker = OpenAIWorker(served.url, MODEL, prioritize=True)
        with worker:
            task = generation(max_tokens=1)
            note(task, purpose=SCORE)
            run(worker, task)
            assert "set prioritize" in (worker.unordered or "")


@pytest.mark.parametrize("is_chunked", [True, False])
def test_trtllm_serve_refuses_a_prompt_longer_than_a_step(model: Any, is_chunked: bool) -> None:
    refused = contextlib.nullcontext() if is_chunked else pytest.raises(InvalidTaskError, match="max_num_tokens")
    with serving(model, "trtllm", named=True, step_len=None if is_chunked else 8) as (_, worker), refused:
        run(worker, GenerationTask(input_tokens=[5] * 9, max_tokens=1))


def test_trtllm_serves_chat_takes_an_effort(model: Any) -> None:
    with serving(model, "trtllm", named=True, endpoint="chat") as (server, worker):
        run(worker, GenerationTask(input_str="5", max_tokens=1, reasoning_effort="high"))
        assert server.requests[-1].body["reasoning_effort"] == "high"
