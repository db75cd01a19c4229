"""OpenAIWorker on llama.cpp's two servers, llama-server and llama-cpp-python, with the embedded target model.

llama-server comes from the wheel `xllamacpp`, where it is installed here or for the Python that a variable names;
CONTRIBUTING.md says how both servers are built. Each part is left out where nothing names its server:

    SCAFFOLDING_XLLAMACPP=venv/bin/python SCAFFOLDING_LLAMA_CPP_PYTHON=venv/bin/python \
        pytest -m integration tests/integration/test_llama_servers.py
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("openai")
pytest.importorskip("torch")
pytest.importorskip("gguf")

from scaffolding_ext import (
    DynasorCoTController,
    HuggingFaceWorker,
    OpenAIWorker,
    ScaffoldingLlm,
)
from scaffolding_ext.controllers.chain.probe import AnswerProbe
from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, Worker
from scaffolding_ext.protocol.branching import LAYER_EXIT, SIMILARITY_GATE
from scaffolding_ext.protocol.meta import note, token_counts_of
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.testing.worker_contract import WORKER_CHECKS
from scaffolding_ext.tinylm.grammar import sample_problem

MODEL = "tinylm/target"
QUESTION = "Start with 5. Add 3 to it."
PROMPT = f"<|user|>{QUESTION}<|assistant|><think>\n"
CONTEXT_LEN = 2048
NUM_PROMPTS = 16

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def reference() -> Iterator[HuggingFaceWorker]:
    with HuggingFaceWorker(MODEL) as found:
        yield found


def problems(number: int) -> list[Any]:
    rng = random.Random(11)
    return [sample_problem(rng, "held_out") for _ in range(number)]


def prompts() -> list[str]:
    return [f"<|user|>{problem.question}<|assistant|><think>\n" for problem in problems(NUM_PROMPTS)]


def generation(**fields: Any) -> GenerationTask:
    return GenerationTask(**{"input_str": PROMPT, "max_tokens": 60, "temperature": 0.0, **fields})


def stream(**fields: Any) -> StreamGenerationTask:
    return StreamGenerationTask(
        **{"input_str": PROMPT, "max_tokens": 60, "streaming_step": 5, "temperature": 0.0, **fields}
    )


def run(worker: Worker, *tasks: Any) -> None:
    """Serve tasks at once, streams to their ends."""

    async def one(task: Any) -> None:
        await worker.run_task(task)
        while not getattr(task, "end_flag", True):
            await worker.run_task(task)

    async def all_of_them() -> None:
        await asyncio.gather(*map(one, tasks))

    asyncio.run(all_of_them())


def both(worker: Worker, reference: Worker, **fields: Any) -> tuple[GenerationTask, GenerationTask]:
    """The same generation there and here."""
    there, here = generation(**fields), generation(**fields)
    run(worker, there)
    run(reference, here)
    return there, here


def text(task: GenerationTask) -> str:
    assert task.output_str is not None
    return task.output_str


def solves(worker: Worker, make: Callable[[], Any]) -> list[Any]:
    """The outputs of a stack on some problems."""
    with ScaffoldingLlm(make(), {"generation": worker}, seed=3) as llm:
        return [llm.generate(problem.question).outputs[0] for problem in problems(6)]


def dynasor() -> Any:
    return DynasorCoTController(
        max_tokens=700,
        chunk_size=48,
        sampling_params={"temperature": 0.0},
        probe=AnswerProbe(sampling_params={"temperature": 0.0}),
    )


# ---- llama-server


@pytest.fixture(scope="module")
def worker(server: Any) -> Iterator[OpenAIWorker]:
    with OpenAIWorker(server.url, MODEL) as found:
        yield found


@pytest.mark.parametrize("check", WORKER_CHECKS)
@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_contract(server: Any, endpoint: Any, check: Callable[..., None]) -> None:
    check(lambda: OpenAIWorker(server.url, MODEL, endpoint=endpoint, tokenizer=MODEL), PROMPT)


def test_it_is_found_out_by_itself(worker: OpenAIWorker) -> None:
    assert (worker.flavor, worker.max_seq_len) == ("llama_cpp", CONTEXT_LEN)
    assert worker.refused.keys() == {"ScoreTask", LAYER_EXIT, SIMILARITY_GATE}
    assert ScoreTask not in worker.task_handlers


def test_greedy_text_is_that_of_transformers(worker: Worker, reference: Worker) -> None:
    for prompt in prompts():
        there, here = both(worker, reference, input_str=prompt, max_tokens=300)
        assert (there.output_str, there.output_tokens) == (here.output_str, here.output_tokens)
        assert there.finish_reason == here.finish_reason
        assert sum(token_counts_of(there) or ()) == sum(token_counts_of(here) or ())


def test_token_by_token_in_a_stream_beside_others(worker: Worker, reference: Worker) -> None:
    streams = [stream(input_str=prompt, streaming_step=1, max_tokens=100) for prompt in prompts()[:4]]
    run(worker, *streams)
    for task in streams:
        here = generation(input_str=task.input_str, max_tokens=100)
        run(reference, here)
        assert (task.output_str, task.output_tokens) == (here.output_str, here.output_tokens)


def test_without_a_budget_it_gets_the_rest_of_the_context(worker: Worker, reference: Worker) -> None:
    there, here = both(worker, reference, max_tokens=None)
    assert (there.finish_reason, there.output_tokens) == ("stop", here.output_tokens)


@pytest.mark.parametrize("stop", ["step.\n", "work step", "ork", "\n"])
@pytest.mark.parametrize("kind", [generation, stream])
def test_stop_strings(worker: Worker, reference: Worker, kind: Callable[..., Any], stop: str) -> None:
    there, here = kind(stop=[stop]), generation(stop=[stop])
    run(worker, there)
    run(reference, here)
    assert (there.output_str, there.output_tokens) == (here.output_str, here.output_tokens)
    assert there.finish_reason == "stop"


def test_a_distribution_is_heated_before_it_is_cut(worker: Worker) -> None:
    """At temperature 0.1 one first token has more than 0.6; at 1, where llama.cpp cuts by itself, it takes two."""
    tasks = [generation(max_tokens=1, temperature=0.1, top_p=0.6, seed=seed) for seed in range(40)]
    run(worker, *tasks)
    assert len(Counter(text(task) for task in tasks)) == 1


def test_log_probs(worker: Worker, reference: Worker) -> None:
    there, here = both(worker, reference, num_logprobs=3, max_tokens=12)
    for theirs, ours in zip(there.logprobs or (), here.logprobs or (), strict=True):
        assert {token: entry.logprob for token, entry in theirs.items()} == pytest.approx(
            {token: entry.logprob for token, entry in ours.items()}, abs=3e-2
        )  # llama.cpp keeps keys and values in half precision


@pytest.mark.parametrize("kind", [generation, stream])
@pytest.mark.parametrize("max_tokens", [8, 7])
def test_ids_inside_characters_are_found_again(worker: Any, kind: Callable[..., Any], max_tokens: int) -> None:
    """Bias and penalty make the model write one token of a character and the other in turn."""
    first, second = worker._bodies.encode("é", False)
    bias = {str(first): 1030.0, str(second): 1000.0}
    task = kind(max_tokens=max_tokens, logit_bias=bias, frequency_penalty=50.0)
    run(worker, task)
    num_whole = max_tokens // 2
    assert (task.output_str, task.output_tokens) == ("é" * num_whole, [first, second] * num_whole)
    assert (token_counts_of(task) or (0,))[0] == max_tokens


def test_a_cancelled_stream_frees_its_slot(server: Any, worker: Any) -> None:
    async def scenario() -> StreamGenerationTask:
        task = stream(max_tokens=1900, ignore_eos=True)
        await worker.run_task(task)
        assert server.num_busy_slots() == 1
        task.cancel_flag = True
        await worker.run_task(task)
        return task

    task = asyncio.run(scenario())
    assert task.end_flag
    assert 5 <= len(task.output_tokens or ()) < 1900
    server.wait_for_busy_slots(0)
    assert worker.num_requests == 0


def test_a_cancelled_call_frees_its_slot(server: Any, worker: Any) -> None:
    async def scenario() -> None:
        call = asyncio.ensure_future(worker.run_task(generation(max_tokens=1900, ignore_eos=True)))
        await asyncio.to_thread(server.wait_for_busy_slots, 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(scenario())
    server.wait_for_busy_slots(0)


def test_a_prompt_that_is_too_long_is_refused(server: Any) -> None:
    with OpenAIWorker(server.url, MODEL, flavor="llama_cpp") as worker:  # which does not know how long it may be
        task = generation(input_str=None, input_tokens=[5] * (CONTEXT_LEN + 1), max_tokens=1)
        with pytest.raises(InvalidTaskError, match="refused the request"):
            run(worker, task)


@pytest.mark.parametrize("kind", [generation, stream])
def test_a_chat_goes_on_with_an_unfinished_turn(server: Any, reference: Worker, kind: Callable[..., Any]) -> None:
    with OpenAIWorker(server.url, MODEL, endpoint="chat") as worker:
        assert "continued turns" not in worker.refused
        for half in ("", "Okay, let me work", "Okay, let me work step by step.\n"):
            task = kind(input_str=QUESTION + half, max_tokens=30)
            if half:
                note(task, turn_start=len(QUESTION))
            here = generation(input_str=PROMPT + half, max_tokens=30)
            run(worker, task)
            run(reference, here)
            assert (task.output_str, task.output_tokens) == (here.output_str, here.output_tokens)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_dynasor_cot_gives_the_same(server: Any, reference: Worker, endpoint: Any) -> None:
    with OpenAIWorker(server.url, MODEL, endpoint=endpoint, tokenizer=MODEL) as worker:
        there = solves(worker, dynasor)
    here = solves(reference, dynasor)
    assert [output.answer for output in there] == [output.answer for output in here]
    if endpoint == "completions":
        assert [output.text for output in there] == [output.text for output in here]
    else:  # the end of thinking is forced in the default family's words there
        thought = [output.text.partition("</think>")[0] for output in here]
        assert [output.text[: len(text)] for output, text in zip(there, thought, strict=True)] == thought


def test_beside_others_it_decodes_no_more_than_alone(worker: Worker) -> None:
    """With 64 chains on four slots: a stream that runs ahead while its probe waits is ended, and goes on later."""

    def num_decoded(at_once: int) -> list[int]:
        with ScaffoldingLlm(dynasor(), {"generation": worker}, at_once, seed=3) as llm:
            results = llm.generate([problem.question for problem in problems(64)])
        return [result.program.ledger.total.decoded for result in results]

    assert sum(num_decoded(64)) <= 1.15 * sum(num_decoded(1))
