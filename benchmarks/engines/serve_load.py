"""The front under load, over real sockets: does each request end, is each answer right, and what does it cost?

    python -m benchmarks.engines.serve_load --quick

Clients in a process of their own ask three stacks over a scripted worker (a plain one, DynasorCoT, a vote of 4), half
of them for streams. One in ten goes away, one in twenty sends a bad body, one in twenty reads slowly. CPU is that of
the front's own thread; the stacks and their scripted workers run on others.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import json
import multiprocessing
import os
import random
import statistics
import time
from collections import Counter
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import click

from benchmarks._lib.command import benchmark, size
from benchmarks._lib.report import Report
from scaffolding_ext import DynasorCoTController, MajorityVoteController, NativeGenerationController, ScaffoldingLlm
from scaffolding_ext.serving.app import Front
from scaffolding_ext.serving.served_stack import ServedStack
from scaffolding_ext.serving.server import FrontThread
from scaffolding_ext.serving.settings import Limits
from scaffolding_ext.testing import ScriptedWorker

STUCK_S = 120.0
NUM_ROUNDS = 4
LARGEST_MS = 0.8  # of CPU a request
PARSER = "httptools" if importlib.util.find_spec("httptools") else "h11"
ENGINE_S = 0.01  # that a task takes in the engine, so that clients find something to go away from
BAD = (b"{", b"[]", b'{"model": "plain"}', b'{"model": "nobody", "messages": [{"role": "user", "content": "1"}]}')
KINDS = {"leaves": 0.10, "bad": 0.05, "slow": 0.05}
CONTROLLERS = {
    "plain": lambda: NativeGenerationController(),
    "dynasor": lambda: DynasorCoTController(400, 2, 16),
    "vote": lambda: MajorityVoteController(NativeGenerationController({"temperature": 1.0}), 4, allocation=None),
}


def _reply(task: Any) -> str:
    question, _, _ = task.input_str.partition("|")
    if task.input_str.endswith("boxed{"):
        return question + "}"
    return "Let me think. " * 4 + f"It is \\boxed{{{question}}}."


async def _engine(task: Any) -> None:
    await asyncio.sleep(ENGINE_S)


class Ask:
    """One client's request, drawn from its number.

    Attributes:
        kind: `"leaves"`, `"bad"`, `"slow"`, or `"good"`.
        body: What it sends.
    """

    def __init__(self, number: int, seed: int) -> None:
        rng = random.Random(f"{seed}/{number}")
        draw, self.kind = rng.random(), "good"
        for kind, share in KINDS.items():
            draw -= share
            if draw < 0:
                self.kind = kind
                break
        self.question, self.stack = str(number), rng.choice(list(CONTROLLERS))
        self.stream = self.kind == "slow" or rng.random() < 0.5
        self.leaves_at_once = rng.random() < 0.5
        messages = [{"role": "user", "content": self.question + "|"}]
        asked = {"model": self.stack, "messages": messages, "stream": self.stream, "seed": number}
        self.body = rng.choice(BAD) if self.kind == "bad" else json.dumps(asked).encode()


async def _client(port: int, ask: Ask) -> str:
    """Send one request and read its answer; says how it ended."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
    try:
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: "
        writer.write(f"{head}{len(ask.body)}\r\n\r\n".encode() + ask.body)
        await writer.drain()
        if ask.kind == "leaves":
            if not ask.leaves_at_once:
                await asyncio.sleep(ENGINE_S)
            return "left"
        content = b""
        while part := await reader.read(64 if ask.kind == "slow" else 1 << 16):
            content += part
            if ask.kind == "slow":
                await asyncio.sleep(0.002)
    finally:
        writer.transport.abort() if ask.kind == "leaves" else writer.close()
    status = int(content.split(b" ", 2)[1])
    if ask.kind == "bad":
        return "refused by name" if 400 <= status < 500 and b'"code":"' in content else f"bad body: {status}"
    if status != 200:
        return f"{ask.kind}: {status}"
    told = f'"answer":"{ask.question}"'.encode()
    ended = not ask.stream or b"data: [DONE]" in content
    return "right" if told in content and ended else "wrong"


def run_clients(port: int, first: int, num: int, at_once: int, seed: int) -> dict[str, int]:
    """Ask `num` requests, `at_once` of them together; counts of how they ended."""

    async def run() -> Counter[str]:
        ends: Counter[str] = Counter()
        numbers = iter(range(first, first + num))

        async def one_after_another() -> None:
            for number in numbers:
                try:
                    ends[await asyncio.wait_for(_client(port, Ask(number, seed)), STUCK_S)] += 1
                except asyncio.TimeoutError:
                    ends["hung"] += 1

        await asyncio.gather(*(one_after_another() for _ in range(at_once)))
        return ends

    return dict(asyncio.run(run()))


def resident_mib() -> float:
    """Resident memory of this process now (Linux)."""
    gc.collect()
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return float(status.partition("VmRSS:")[2].split()[0]) / 1024


def num_open_files() -> int:
    """Open files and sockets of this process (Linux)."""
    return len(os.listdir("/proc/self/fd"))


def cpu_of(thread: FrontThread) -> float:
    """Seconds of CPU that the front's thread has used: neither the hosts' threads nor the double's work are in it."""
    told: Future[float] = Future()
    thread.loop.call_soon_threadsafe(lambda: told.set_result(time.thread_time()))
    return told.result(STUCK_S)


@benchmark("engines.serve_load")
@size("--num_requests", 2000, quick=300, help="Requests a round; there are four.")
@click.option("--at_once", default=256, show_default=True, help="Clients at once.")
def main(report: Report, num_requests: int, at_once: int) -> None:
    """2,000 requests at 256 at once, some of them rude: ends, answers, leaks, memory, and CPU a request."""
    limits = Limits(max_queue=4 * at_once, keep_alive_seconds=1.0)
    stacks = [
        ServedStack(name, ScaffoldingLlm(make(), {"generation": ScriptedWorker(_reply, before=_engine)}), limits)
        for name, make in CONTROLLERS.items()
    ]
    front = Front(stacks, limits)
    workers: list[Any] = [stack.llm.workers["generation"] for stack in stacks]
    context = multiprocessing.get_context("spawn")
    ends: Counter[str] = Counter()
    with FrontThread(front) as thread, ProcessPoolExecutor(1, mp_context=context) as pool:
        port = int(thread.url.rpartition(":")[2])
        pool.submit(run_clients, port, 0, 100, 50, report.seed).result()  # warm up
        files, memory, seconds = num_open_files(), [], []
        for turn in range(NUM_ROUNDS + 1):
            for worker in workers:  # the double remembers its tasks
                worker.tasks.clear()
                worker._known.clear()
            memory.append(resident_mib())
            if turn == NUM_ROUNDS:
                break
            start = cpu_of(thread)
            told = pool.submit(run_clients, port, 0, num_requests, at_once, report.seed).result()
            seconds.append((cpu_of(thread) - start) / num_requests)
            ends.update(told)
        num_left = sum(stack.num_open for stack in stacks) + len(front.jobs)
        new_files = num_open_files() - files
    total = sum(ends.values())
    for name, number in sorted(ends.items()):
        report.figure(f"num_{name.replace(' ', '_')}", number)
    report.setting |= {"parser": PARSER, "load": os.getloadavg()[0]}
    report.figure("cpu_ms_a_request", 1e3 * statistics.median(seconds), 1e3 * min(seconds), 1e3 * max(seconds))
    report.figure("resident_mib_before_the_first_round", memory[0])
    report.figure("resident_mib_before_the_second_round", memory[1])
    report.figure("resident_mib_at_the_end", memory[-1])
    report.bar("requests that hung", ends["hung"], "<=", 0)
    report.bar("requests that ended right, left, or were refused by name", _fine(ends), ">=", total)
    report.bar("choices and jobs left over", num_left, "<=", 0)
    report.bar("files and sockets left open", new_files, "<=", 0)
    report.bar("growth of memory behind the first round, MiB", memory[-1] - memory[1], "<=", 4.0)
    report.bar("CPU of the front's thread a request, ms", 1e3 * statistics.median(seconds), "<=", LARGEST_MS)


def _fine(ends: Counter[str]) -> int:
    return ends["right"] + ends["left"] + ends["refused by name"]


if __name__ == "__main__":
    main()
