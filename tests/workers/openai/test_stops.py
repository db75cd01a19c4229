"""Stop strings where the server sends token ids alone: with `detokenize: false` trtllm-serve matches none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from scaffolding_ext.answers.stop_strings import StopStrings
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask
from scaffolding_ext.protocol.meta import token_counts_of
from scaffolding_ext.workers.shared.id_stops import IdStops
from tests.servers.openai_server import OpenAIServer

QUESTION = "Start with 5. Apply a+3,b-2. Find the total."


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    pytest.importorskip("torch")
    from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

    with HuggingFaceWorker("tinylm/draft", max_batch_size=4) as worker:
        yield worker


@pytest.fixture(scope="module")
def worker(model: Any) -> Iterator[Any]:
    pytest.importorskip("openai")
    from scaffolding_ext.workers.openai.worker import OpenAIWorker

    with (
        OpenAIServer(model, "tinylm/draft", flavor="trtllm") as server,
        OpenAIWorker(server.url, "tinylm/draft", flavor="trtllm") as made,
    ):
        yield made


def run(worker: Any, task: Any) -> Any:
    asyncio.run(worker.run_task(task))
    return task


def stop_in(model: Any) -> tuple[str, str]:
    """A text of the model, and a string in the middle of it."""
    text = run(model, GenerationTask(input_str=QUESTION, max_tokens=40, ignore_eos=True, temperature=0.0)).output_str
    middle = len(text) // 2
    return text, text[middle : middle + 3]


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_answer_ends_before_the_string_as_that_of_the_model(model: Any, worker: Any, is_stream: bool) -> None:
    text, stop = stop_in(model)
    fields = {"input_str": QUESTION, "max_tokens": 40, "temperature": 0.0, "ignore_eos": True, "stop": [stop, "never"]}
    expected = run(model, GenerationTask(**fields))
    task: Any = StreamGenerationTask(**fields, streaming_step=3) if is_stream else GenerationTask(**fields)
    run(worker, task)
    while is_stream and not task.end_flag:
        run(worker, task)
    assert task.output_str == expected.output_str == text[: text.find(stop)]
    assert task.output_tokens == expected.output_tokens
    assert task.finish_reason == expected.finish_reason == "stop"
    assert token_counts_of(task).decoded >= len(task.output_tokens)  # what was decoded in vain is counted


def test_an_answer_without_the_string_is_left_alone(model: Any, worker: Any) -> None:
    fields = {"input_str": QUESTION, "max_tokens": 12, "temperature": 0.0, "ignore_eos": True}
    expected = run(model, GenerationTask(**fields))
    task = run(worker, GenerationTask(**fields, stop="§"))
    assert (task.output_str, task.output_tokens, task.finish_reason) == (
        *(expected.output_str, expected.output_tokens),
        "length",
    )


def test_a_string_is_found_wherever_its_tokens_are_cut() -> None:
    def decode(ids: list[int]) -> str:
        return "".join(map(chr, ids))

    text = list(map(ord, "one two three two"))
    for size in range(1, len(text) + 1):
        ends = []
        stops = IdStops(StopStrings(("two", "three")), decode)
        for end in range(size, len(text) + size, size):
            ids = text[:end]
            found = stops.feed(ids, len(ids) - (end - size))
            if found is not None:
                ends.append(found)
                break
        assert ends == [len("one two")]


def test_a_character_of_several_tokens_is_matched_when_it_is_whole() -> None:
    def decode(ids: list[int]) -> str:
        return bytes(ids).decode(errors="replace")

    ids = list("aé€b".encode())
    stops = IdStops(StopStrings(("€",)), decode)
    assert [stops.feed(ids[:end], 1) for end in range(1, len(ids))] == [None] * 5 + [6]


def test_tokens_that_are_no_text_do_not_make_decoding_dearer() -> None:
    lengths = []

    def decode(ids: list[int]) -> str:
        lengths.append(len(ids))
        return bytes(ids).decode(errors="replace")

    ids = [0xFF] * 200 + list(b"end")
    stops = IdStops(StopStrings(("end",)), decode)
    assert [stops.feed(ids[:end], 1) for end in range(1, len(ids) + 1)][-1] == len(ids)
    assert max(lengths) <= 20
