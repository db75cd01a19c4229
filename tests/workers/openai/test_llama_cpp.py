"""OpenAIWorker on what llama-server does otherwise: the double does it as the real one was seen to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("openai")
pytest.importorskip("torch")

from scaffolding_ext.errors import EngineError
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, Worker
from scaffolding_ext.protocol.meta import TokenCounts, note, token_counts_of
from scaffolding_ext.protocol.task_results import TokenLogprob
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker
from scaffolding_ext.workers.openai.fields import UnreadableAnswerError
from scaffolding_ext.workers.openai.flavors import FLAVORS
from scaffolding_ext.workers.openai.requests import RequestBodies
from scaffolding_ext.workers.openai.responses import LostIds
from scaffolding_ext.workers.openai.worker import OpenAIWorker
from scaffolding_ext.workers.shared.streaming import NEVER
from tests.servers.openai_server import OpenAIServer

MODEL = "tinylm/draft"
QUESTION = "Start with 5. Add 3 to it."
PROMPT = f"<|user|>{QUESTION}<|assistant|><think>\n"
BODIES = RequestBodies(FLAVORS["llama_cpp"], "m", MODEL, 2048, chat=False)


@pytest.fixture(scope="module")
def model() -> Iterator[HuggingFaceWorker]:
    with HuggingFaceWorker(MODEL, enable_block_reuse=False) as worker:
        yield worker


def serving(worker: Worker, flavor: str, **options: Any) -> OpenAIServer:
    def encode(text: str) -> list[int]:
        return BODIES.encode(text, False)

    return OpenAIServer(worker, MODEL, flavor=flavor, encode=encode, decode=BODIES.decode, **options)


def generation(**fields: Any) -> GenerationTask:
    return GenerationTask(**{"input_str": PROMPT, "max_tokens": 40, "temperature": 0.0, **fields})


def stream(**fields: Any) -> StreamGenerationTask:
    return StreamGenerationTask(
        **{"input_str": PROMPT, "max_tokens": 40, "streaming_step": 3, "temperature": 0.0, **fields}
    )


def run(worker: Worker, task: Any) -> Any:
    async def to_its_end() -> None:
        await worker.run_task(task)
        while not getattr(task, "end_flag", True):
            await worker.run_task(task)

    asyncio.run(to_its_end())
    return task


KINDS = pytest.mark.parametrize("kind", [generation, stream])


def test_it_tells_how_long_a_prompt_may_be(model: Worker) -> None:
    with serving(model, "llama_cpp", max_model_len=321) as server, OpenAIWorker(server.url, MODEL) as worker:
        assert (worker.flavor, worker.max_seq_len) == ("llama_cpp", 321)


def test_it_is_told_to_heat_a_distribution_before_it_cuts_it() -> None:
    samplers = BODIES.generation(generation(temperature=0.6, top_p=0.9), stream=False)["samplers"]
    assert samplers.index("temperature") < samplers.index("top_k") < samplers.index("top_p")


@KINDS
@pytest.mark.parametrize("stop", [".", "s first", "\n"])
def test_a_stop_string_leaves_all_ids(model: Worker, kind: Callable[..., Any], stop: str) -> None:
    with serving(model, "llama_cpp") as server, OpenAIWorker(server.url, MODEL) as worker:
        there, here = run(worker, kind(stop=[stop])), run(model, generation(stop=[stop]))
    assert here.finish_reason == "stop"
    assert (there.output_str, there.output_tokens) == (here.output_str, here.output_tokens)


@KINDS
def test_a_chats_answer_does_not_begin_with_what_it_goes_on_with(model: Worker, kind: Callable[..., Any]) -> None:
    half = "Okay, let me"
    with serving(model, "llama_cpp") as server, OpenAIWorker(server.url, MODEL, endpoint="chat") as worker:
        task = kind(input_str=QUESTION + half)
        note(task, turn_start=len(QUESTION))
        run(worker, task)
        here = run(model, generation(input_str=QUESTION + half))
        assert {request.body.get("reasoning_format") for request in server.requests[1:]} == {"none"}
    assert (task.output_str, task.output_tokens) == (here.output_str, here.output_tokens)


class Writes(Worker):
    """Writes given tokens."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    async def write(self, task: Any) -> None:
        num_before = len(task.output_tokens or ()) if isinstance(task, StreamGenerationTask) else len(self.ids)
        task.output_tokens = self.ids[: num_before + 1]
        task.output_str = BODIES.decode(task.output_tokens)
        task.end_flag = len(task.output_tokens) == len(self.ids)
        task.finish_reason = "length" if task.end_flag else None
        task.logprobs = [{token: TokenLogprob(-0.5)} for token in task.output_tokens]
        note(task, counts=TokenCounts(len(task.output_tokens), 5, 0))

    task_handlers = {GenerationTask: write, StreamGenerationTask: write}  # noqa: RUF012


def test_a_chat_that_is_ahead_gives_what_was_asked_for() -> None:
    """A chain on a chat has no tokenizer to cut a text with, so that it would go by how much has happened to come."""
    ids = BODIES.encode("0123456789 0123456789", False)
    task, seen = stream(input_str=QUESTION, streaming_step=5, max_tokens=len(ids)), []

    async def to_its_end(worker: OpenAIWorker) -> None:
        while not task.end_flag:
            await worker.run_task(task)
            await worker._connection.run(task.request_handle._wait, NEVER)  # all has come
            seen.append((task.output_tokens, task.output_str, len(task.logprobs or ())))

    with serving(Writes(ids), "llama_cpp") as server, OpenAIWorker(server.url, MODEL, endpoint="chat") as worker:
        asyncio.run(to_its_end(worker))
    assert seen == [(ids[:num], BODIES.decode(ids[:num]), 0) for num in (5, 10, 15, 20, 21)]


@KINDS
@pytest.mark.parametrize("text", ["naïve 学 and so", "a \U0001f600!\n"])
def test_ids_inside_characters_are_found_again(kind: Callable[..., Any], text: str) -> None:
    ids = BODIES.encode(text, False)
    with serving(Writes(ids), "llama_cpp") as server, OpenAIWorker(server.url, MODEL) as worker:
        task = run(worker, kind())
    assert (task.output_str, task.output_tokens) == (text, ids)


@KINDS
def test_a_character_that_is_cut_off_at_the_end_goes(kind: Callable[..., Any]) -> None:
    ids = BODIES.encode("so é", False)
    whole = BODIES.encode("so", False)
    with serving(Writes(ids[:-1]), "llama_cpp") as server, OpenAIWorker(server.url, MODEL) as worker:
        task = run(worker, kind())
    counts = token_counts_of(task)
    assert counts is not None
    assert counts.decoded == len(ids) - 1
    assert BODIES.decode(task.output_tokens) == task.output_str
    assert task.output_tokens[: len(whole)] == whole


@KINDS
def test_log_probs_that_are_lost_are_not_made_up(kind: Callable[..., Any]) -> None:
    with (
        serving(Writes(BODIES.encode("an é", False)), "llama_cpp") as server,
        OpenAIWorker(server.url, MODEL) as worker,
        pytest.raises(EngineError, match=r"omitted \d log-probabilities.*set num_logprobs to None"),
    ):
        run(worker, kind(num_logprobs=1))


def lost_ids() -> LostIds:
    return LostIds(lambda text: BODIES.encode(text, False), BODIES.decode, needs_logprobs=False)


def test_ids_that_no_text_tells_are_an_error() -> None:
    _, second = BODIES.encode("é", False)
    with pytest.raises(UnreadableAnswerError, match="does not determine them"):
        lost_ids().restored("学", [second], ["学"])
    with pytest.raises(UnreadableAnswerError, match="decoded 9 tokens, but its answer has the ids of 0"):
        lost_ids().has_lost_an_end(9)
