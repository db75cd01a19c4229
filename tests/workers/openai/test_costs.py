"""A streamed token costs the client few calls more than one of a whole answer."""

import asyncio
import functools
import importlib
import json
import warnings

import pytest

pytest.importorskip("openai")

import openai

from scaffolding_ext import DynasorCoTController, MajorityVoteController, NativeGenerationController, ScaffoldingLlm
from scaffolding_ext.controllers.repetition import Loops
from scaffolding_ext.prompts.tokenizers import load_tokenizer
from scaffolding_ext.workers.openai.worker import OpenAIWorker

httpx = importlib.import_module(openai.DefaultAsyncHttpxClient.__mro__[1].__module__.partition(".")[0])  # or httpx2
MODEL = "tinylm/target"
NUM_TOKENS, NUM_QUESTIONS = 400, 4


def plain(loops=False):
    controller = NativeGenerationController({"temperature": 0.7, "max_tokens": 4096})
    controller.loops = Loops() if loops else None
    return controller


CHAIN = functools.partial(DynasorCoTController, max_tokens=NUM_TOKENS, chunk_size=32)
STREAMED = {  # each with the system without streams that it stands beside
    "chains under loops": (lambda: plain(loops=True), plain),
    "votes of 8 in flight by tokens": (lambda: MajorityVoteController(plain(), 8, allocation=None, in_flight=8), plain),
    "DynasorCoT": (CHAIN, functools.partial(CHAIN, mode="chunk")),
}


class Transport:
    """Answers requests as a vLLM whose model writes the same text to each."""

    def __init__(self, every_token):
        self._every_token = every_token
        tokenizer = load_tokenizer(MODEL).backend_tokenizer
        words = tokenizer.encode("so 1 2 3 then a + b - c is 4 5 next 6 7 the 8 9 d e f", add_special_tokens=False).ids
        self._ids = [words[(n * n + n // 7) % len(words)] for n in range(NUM_TOKENS)]  # without a loop
        self._texts = [tokenizer.decode([each]) for each in self._ids]

    async def answer(self, request):
        body = json.loads(request.content)
        num_tokens = min(len(self._ids), body["max_tokens"])
        if not body.get("stream"):
            return httpx.Response(200, json=self._piece(0, num_tokens, num_tokens))
        interval = 1 if self._every_token else body.get("stream_interval", 1)
        ends = [*range(1, num_tokens, interval), num_tokens]
        pieces = [self._piece(start, end, num_tokens) for start, end in zip([0, *ends], ends, strict=False)]
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Pieces(pieces))

    def _piece(self, start, end, num_tokens):
        reason = None if end < num_tokens else "stop" if end == len(self._ids) else "length"
        choice = {"index": 0, "text": "".join(self._texts[start:end]), "logprobs": None, "finish_reason": reason}
        choice |= {"stop_reason": None, "prompt_token_ids": None, "token_ids": self._ids[start:end]}
        usage = {"prompt_tokens": 45, "total_tokens": 45 + end, "completion_tokens": end}
        told = {"id": "cmpl-8f2c0f0b7d0e4e0fa0d9b2d8d0f8a1b2", "object": "text_completion", "created": 1795000000}
        return {**told, "model": MODEL, "choices": [choice], "usage": usage}


class Pieces(httpx.AsyncByteStream):
    def __init__(self, pieces):
        self._pieces = pieces

    async def __aiter__(self):
        for piece in self._pieces:
            await asyncio.sleep(0)  # other streams have their turn
            yield f"data: {json.dumps(piece)}\n\n".encode()
        yield b"data: [DONE]\n\n"


def calls_a_token(make, count, every_token=False, in_worker=True):
    """Calls on the host's loop, and on the worker's, for each decoded token."""
    before = count.num
    worker = OpenAIWorker("http://none/v1", MODEL, flavor="vllm", max_seq_len=1 << 16, max_concurrency=128)
    client = worker._connection._client._client
    client._transport, client._mounts = httpx.MockTransport(Transport(every_token).answer), {}
    with warnings.catch_warnings(), ScaffoldingLlm(make(), {"generation": worker}, seed=1) as llm:
        warnings.simplefilter("ignore")
        llm.generate("warm up")
        with count.on_loop(llm.loop), count.on_loop(worker._connection.loop if in_worker else llm.loop):
            results = llm.generate([f"question {n}" for n in range(NUM_QUESTIONS)])
    return (count.num - before) / sum(result.program.ledger.total.decoded for result in results)


@pytest.mark.parametrize("name", STREAMED)
def test_a_stream_costs_at_most_five_times_whole_answers(name, call_count):
    streamed, whole = STREAMED[name]
    assert calls_a_token(streamed, call_count) <= 5 * calls_a_token(whole, call_count)


@pytest.mark.parametrize("name", STREAMED)
def test_the_host_does_not_wake_for_each_token_of_a_server_that_sends_them_singly(name, call_count):
    streamed, whole = STREAMED[name]
    in_host = calls_a_token(streamed, call_count, every_token=True, in_worker=False)
    assert in_host <= 5 * calls_a_token(whole, call_count)
