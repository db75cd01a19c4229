"""Costs that a server does not tell: cached tokens without the server's option, and prompts of closed streams."""

import asyncio
import warnings

import pytest

pytest.importorskip("openai")

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.evaluation.run.formats import Example
from scaffolding_ext.evaluation.run.runner import evaluate
from scaffolding_ext.evaluation.run.summary import summarize
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask
from scaffolding_ext.protocol.meta import PROMPT, REUSE, TokenCounts, meta_of
from scaffolding_ext.workers.openai.worker import OpenAIWorker, ServerWarning
from tests.servers.openai_server import OpenAIServer

MODEL = "tinylm/draft"


@pytest.fixture(scope="module")
def model():
    pytest.importorskip("torch")
    from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

    with HuggingFaceWorker(MODEL) as worker:
        yield worker


def served(server, **options):
    return OpenAIWorker(server.url, MODEL, **options)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize(
    ("flavor", "option"), [("vllm", "--enable-prompt-tokens-details"), ("sglang", "--enable-cache-report")]
)
def test_a_server_that_tells_no_cached_tokens_is_named_with_its_option(model, flavor, option, endpoint):
    with OpenAIServer(model, MODEL, flavor=flavor, tells_reuse=False) as server:
        with pytest.warns(ServerWarning, match=f"computed tokens and their price are not reported: .* {option}"):
            worker = served(server, endpoint=endpoint)
        with worker:
            task = GenerationTask(input_str="Start with 5.", max_tokens=4, temperature=0.0)
            asyncio.run(worker.run_task(task))
            assert meta_of(task).uncounted == REUSE
    with OpenAIServer(model, MODEL, flavor=flavor) as server, warnings.catch_warnings(), served(server) as worker:
        warnings.simplefilter("error")
        asyncio.run(worker.run_task(task))
        assert meta_of(task).uncounted is None


@pytest.mark.parametrize(("flavor", "uncounted"), [("vllm", None), ("openai", REUSE)])
def test_a_named_flavor_is_trusted(model, flavor, uncounted):
    with OpenAIServer(model, MODEL, tells_reuse=False) as server, served(server, flavor=flavor) as worker:
        task = GenerationTask(input_str="Start with 5.", max_tokens=4, temperature=0.0)
        asyncio.run(worker.run_task(task))
        assert meta_of(task).uncounted == uncounted


def closed(worker):
    async def scenario():
        task = StreamGenerationTask(input_tokens=[5, 6, 7, 8], max_tokens=400, temperature=0.0, streaming_step=4)
        await worker.run_task(task)
        task.cancel_flag = True
        await worker.run_task(task)
        return task

    return asyncio.run(scenario())


def test_a_closed_stream_counts_its_prompt_if_the_server_tells_usage_with_each_piece(model):
    with OpenAIServer(model, MODEL) as server, served(server, flavor="vllm") as worker:
        task = closed(worker)
        counts = meta_of(task).counts
        assert counts.prefilled + counts.reused == 4
        assert counts.decoded >= 4
        assert meta_of(task).uncounted is None


def test_a_closed_stream_without_usage_is_marked_as_unmetered(model):
    with OpenAIServer(model, MODEL, flavor="sglang") as server, served(server, flavor="sglang") as worker:
        task = closed(worker)
        assert meta_of(task).counts == TokenCounts(len(task.output_tokens))
        assert meta_of(task).uncounted == PROMPT


def records_of(server, **options):
    with (
        served(server, **options) as worker,
        ScaffoldingLlm(
            NativeGenerationController({"max_tokens": 4, "temperature": 0.0}), {"generation": worker}
        ) as llm,
    ):
        return evaluate(llm, [Example(str(n), f"Start with {n}.", "1") for n in range(2)])


@pytest.mark.filterwarnings("ignore::scaffolding_ext.workers.openai.worker.ServerWarning")
def test_figures_of_computed_tokens_are_not_reported_then(model):
    with OpenAIServer(model, MODEL, tells_reuse=False) as server:
        records = records_of(server)
    assert [record.ledger["num_unknown_reuse_tasks"] for record in records] == [1, 1]
    prices = {"decoded": 2.0, "prefilled": 0.5}
    summary = summarize(records, price=prices)
    assert (summary.num_unknown_reuse_tasks, summary.mean_computed_tokens, summary.cost) == (2, None, None)
    assert summary.mean_decoded_tokens == 4
    assert any("tells no cached tokens" in warning for warning in summary.warnings)
    for price in ({"decoded": 2.0}, None):  # nothing is missing that somebody asked for
        assert not any("cached tokens" in warning for warning in summarize(records, price=price).warnings)
    assert summarize(records, price={"decoded": 2.0}).cost is not None
    with OpenAIServer(model, MODEL) as server:
        told = summarize(records_of(server), price=prices)
    assert (told.num_unknown_reuse_tasks, told.cost is None, told.mean_computed_tokens is None) == (0, False, False)


def test_scores_with_the_noise_of_half_precision_are_trusted_and_shifted_ones_are_not(monkeypatch):
    """Two correct computations in bfloat16 differ by up to 0.15 nats a token."""
    import random

    from scaffolding_ext.workers.openai import self_test

    rng = random.Random(3)
    true = [-abs(rng.gauss(0.8, 0.9)) for _ in range(240)]

    def found(noise, shift):
        told = iter(true[: 3 * self_test._NUM_TOKENS])

        async def complete(_, body, read):
            n = self_test._NUM_TOKENS
            values = [next(told) for _ in range(n)]
            choice = {"logprobs": {"token_logprobs": values}, "token_ids": list(range(n)), "text": ""}
            state["drawn"] = values
            return choice

        async def scores_of(connection, bodies, ids, start):
            drawn = state["drawn"]
            moved = drawn[shift:] + drawn[:shift]
            values = [value + rng.uniform(-noise, noise) for value in moved]
            return type("S", (), {"values": values})()

        state = {}
        monkeypatch.setattr(self_test, "scores_of", scores_of)
        connection = type("K", (), {"complete": staticmethod(lambda *args: complete(None, args[1], args[2]))})()
        bodies = type("B", (), {"encode": lambda self, *_: [1], "generation": lambda self, *_, **__: {}})()
        return asyncio.run(self_test._found_wrong(connection, bodies))

    assert found(0.15, 0) is None
    assert "one token too early" in found(0.15, -1) or "one token too late" in found(0.15, -1)
    assert "one token too" in found(0.0, 1)
    assert "nats on average" in found(3.0, 0)
