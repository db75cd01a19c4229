"""Measures the client's CPU a decoded token: whole answers, chains and votes that are streamed, without a server.

    python -m benchmarks.engines.wire

A transport answers at once with the pieces that vLLM sends, so that only the host, the worker and its HTTP client
cost something. "every token" is a server that sends one piece a token; otherwise it sends pieces of the size that the
worker asks for. Each system stands beside the same one with whole answers: DynasorCoT, which sends a probe every 32
tokens, beside itself in chunks. Systems take turns in each repetition, and a ratio is of one repetition. The front is
`serve` in this process with 64 clients at once in another, whose CPU does not count.
"""

from __future__ import annotations

import asyncio
import functools
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import click

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.report import Report
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.repetition import Loops
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.prompts.tokenizers import load_tokenizer
from scaffolding_ext.protocol import Controller
from scaffolding_ext.serving.app import Front
from scaffolding_ext.serving.served_stack import ServedStack
from scaffolding_ext.serving.server import FrontThread
from scaffolding_ext.serving.settings import Limits
from scaffolding_ext.workers.openai.worker import OpenAIWorker

MODEL = "tinylm/target"
NUM_CHAINS = 64
WIDTH = 8
SPACING = 32
MOST_TO_WHOLE, LEAST_A_SECOND = 5.0, 15_000
FRONTS = {  # server sends single tokens, front streams
    "front, whole answers": (False, False),
    "front, streams": (False, True),
    "front, streams, every token": (True, True),
}
WHOLE, CHUNKS = "whole answers", "DynasorCoT in chunks"


class System(NamedTuple):
    """A controller, how many questions it answers with 64 chains, and the system without streams beside it."""

    make: Callable[[], Controller]
    num_questions: int = NUM_CHAINS
    beside: str = WHOLE


def plain(loops: bool = False) -> Controller:
    controller = NativeGenerationController({"temperature": 0.7, "max_tokens": 4096})
    controller.loops = Loops() if loops else None
    return controller


def vote() -> Controller:
    return MajorityVoteController(plain(), WIDTH, allocation=None, in_flight=WIDTH)


def systems(num_tokens: int) -> dict[str, System]:
    chain = functools.partial(DynasorCoTController, max_tokens=num_tokens, chunk_size=SPACING)
    return {
        WHOLE: System(plain),
        CHUNKS: System(functools.partial(chain, mode="chunk"), beside=CHUNKS),
        "chains under loops": System(lambda: plain(loops=True)),
        f"votes of {WIDTH} in flight by tokens": System(vote, NUM_CHAINS // WIDTH),
        "DynasorCoT": System(chain, beside=CHUNKS),
    }


class Transport:
    """Answers requests as a vLLM whose model writes the same text to each."""

    def __init__(self, http: Any, num_tokens: int, every_token: bool) -> None:
        self._http, self._every_token = http, every_token
        tokenizer = load_tokenizer(MODEL).backend_tokenizer
        words = tokenizer.encode("so 1 2 3 then a + b - c is 4 5 next 6 7 the 8 9 d e f", add_special_tokens=False).ids
        self._ids = [words[(n * n + n // 7) % len(words)] for n in range(num_tokens)]  # without a loop
        self._texts = [tokenizer.decode([each]) for each in self._ids]
        self._streams: dict[tuple[int, int], list[bytes]] = {}

    async def answer(self, request: Any) -> Any:
        body = json.loads(request.content)
        num_tokens = min(len(self._ids), body["max_tokens"])
        if not body.get("stream"):
            return self._http.Response(200, json=self._piece(0, num_tokens))
        interval = 1 if self._every_token else body.get("stream_interval", 1)
        if (num_tokens, interval) not in self._streams:
            ends = [*range(1, num_tokens, interval), num_tokens]
            pieces = [self._piece(start, end, num_tokens) for start, end in zip([0, *ends], ends, strict=False)]
            self._streams[num_tokens, interval] = [f"data: {json.dumps(piece)}\n\n".encode() for piece in pieces]
        chunks = self._streams[num_tokens, interval]

        class Pieces(self._http.AsyncByteStream):  # type: ignore[misc,name-defined]
            async def __aiter__(self) -> AsyncIterator[bytes]:
                for chunk in chunks:
                    await asyncio.sleep(0)  # other streams have their turn
                    yield chunk
                yield b"data: [DONE]\n\n"

        return self._http.Response(200, headers={"content-type": "text/event-stream"}, stream=Pieces())

    def _piece(self, start: int, end: int, num_tokens: int | None = None) -> dict[str, Any]:
        is_last = num_tokens in (None, end)
        reason = None if not is_last else "stop" if end == len(self._ids) else "length"
        choice = {"index": 0, "text": "".join(self._texts[start:end]), "logprobs": None, "finish_reason": reason}
        choice |= {"stop_reason": None, "prompt_token_ids": None, "token_ids": self._ids[start:end]}
        usage = {"prompt_tokens": 45, "total_tokens": 45 + end, "completion_tokens": end}
        told = {"id": "cmpl-8f2c0f0b7d0e4e0fa0d9b2d8d0f8a1b2", "object": "text_completion", "created": 1795000000}
        return {**told, "model": MODEL, "choices": [choice], "usage": usage}


def worker(num_tokens: int, every_token: bool) -> OpenAIWorker:
    made = OpenAIWorker("http://none/v1", MODEL, flavor="vllm", max_seq_len=1 << 16, max_concurrency=2 * NUM_CHAINS)
    client = made._connection._client._client
    http: Any = __import__(type(client).__mro__[2].__module__.partition(".")[0])
    transport = http.MockTransport(Transport(http, num_tokens, every_token).answer)
    client._transport, client._mounts = transport, {}
    return made


def cpu_a_token(system: System, num_tokens: int, every_token: bool) -> float:
    """Seconds of the process's CPU for each decoded token."""
    questions = [f"Start with {n}. Add 3. Find the total." for n in range(system.num_questions)]
    with ScaffoldingLlm(
        system.make(), {"generation": worker(num_tokens, every_token)}, seed=1, max_parallel_requests=NUM_CHAINS
    ) as llm:
        llm.generate(questions[0])
        began = time.process_time()
        results = llm.generate(questions)
        spent = time.process_time() - began
    return spent / sum(result.program.ledger.total.decoded for result in results)


CLIENTS = """
import asyncio, json, sys

async def ask(number):
    body = {"model": "model", "messages": [{"role": "user", "content": f"Start with {number}."}], "temperature": 0.7}
    body = json.dumps({**body, "stream": sys.argv[3] == "True", "max_tokens": 4096}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]))
    head = ["POST /v1/chat/completions HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    writer.write("\\r\\n".join([*head, "Content-Type: application/json", "", ""]).encode() + body)
    answer = await reader.read(-1)
    assert b"200 OK" in answer[:40], answer
    writer.close()

async def main():
    await asyncio.gather(*map(ask, range(int(sys.argv[2]))))

asyncio.run(main())
"""


def front_cpu_a_token(num_tokens: int, every_token: bool, streams: bool) -> float:
    """Seconds of CPU of the serving process for each token of 64 chats at once."""
    controller = NativeGenerationController()
    controller.prompting = Prompting(load_tokenizer(MODEL))
    with ScaffoldingLlm(
        controller, {"generation": worker(num_tokens, every_token)}, seed=1, max_parallel_requests=NUM_CHAINS
    ) as llm:
        limits = Limits(max_connections=2 * NUM_CHAINS)
        with FrontThread(Front([ServedStack("model", llm, limits)], limits)) as running:
            port = running.url.rpartition(":")[2]
            command = [sys.executable, "-c", CLIENTS, port]
            subprocess.run([*command, "4", str(streams)], check=True)
            began = time.process_time()
            subprocess.run([*command, str(NUM_CHAINS), str(streams)], check=True)
            return (time.process_time() - began) / (NUM_CHAINS * num_tokens)


@benchmark("engines.wire")
@click.option("--num_repetitions", default=5, show_default=True, help="Each measures all systems, in turn.")
@size("--num_tokens", 400, quick=200, help="Tokens of an answer.")
def main(report: Report, num_repetitions: int, num_tokens: int) -> None:
    """CPU of the client for a decoded token: whole answers, streams in pieces, streams of single tokens."""
    warnings.simplefilter("ignore")
    named = systems(num_tokens)
    spent: dict[tuple[str, bool], list[float]] = {}
    fronts: dict[str, list[float]] = {}
    for _ in track(range(num_repetitions), "repetitions"):
        for called, how in FRONTS.items():
            fronts.setdefault(called, []).append(front_cpu_a_token(num_tokens, *how))
        for name, system in named.items():
            for every_token in (False, True)[: 1 if name == system.beside else 2]:
                spent.setdefault((name, every_token), []).append(cpu_a_token(system, num_tokens, every_token))
    for (name, every_token), seconds in spent.items():
        called = f"{name}, every token" if every_token else name
        report.figure(f"{called}: microseconds a token", *(1e6 * value for value in spread(seconds)))
        report.figure(f"{called}: tokens a second of one core", *(1 / value for value in spread(seconds, -1)))
        beside = named[name].beside
        if name != beside:
            ratios = [value / whole for value, whole in zip(seconds, spent[beside, False], strict=True)]
            report.figure(f"{called}: to {beside}", *spread(ratios))
            if not every_token:
                report.bar(f"{called}: CPU to {beside}", statistics.median(ratios), "<=", MOST_TO_WHOLE)
            rate = 1 / statistics.median(seconds)
            report.bar(f"{called}: tokens a second of one core", rate, ">=", LEAST_A_SECOND)

    for called, seconds in fronts.items():
        report.figure(f"{called}: microseconds a token", *(1e6 * value for value in spread(seconds)))
        report.bar(f"{called}: tokens a second of one core", 1 / statistics.median(seconds), ">=", LEAST_A_SECOND)


def spread(values: list[float], step: int = 1) -> tuple[float, float, float]:
    """Median, and the two ends of all repetitions; `step` -1 exchanges the ends."""
    low, high = sorted((min(values), max(values)), reverse=step < 0)
    return statistics.median(values), low, high


if __name__ == "__main__":
    main()
