"""Many requests at once against a server that fails one call in ten: does each end, and does anything leak?

    python -m benchmarks.engines.openai_soak --seed 1
    python -m benchmarks.engines.openai_soak --seed 1 --model tinylm/draft

DynasorCoT chains, in one stream and in chunks, and votes of 4 in turn, over HTTP, on a scripted model, whose answer is
known, or on an embedded one. Calls fail as a server may: 429, 500, reset, reset in the middle of a stream, silence, and
a body that is no JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import click

from benchmarks._lib.command import benchmark, progress, size
from benchmarks._lib.report import Report
from scaffolding_ext import (
    DynasorCoTController,
    HuggingFaceWorker,
    MajorityVoteController,
    NativeGenerationController,
    OpenAIWorker,
    ScaffoldingLlm,
)
from scaffolding_ext.errors import ScaffoldingExtError
from scaffolding_ext.evaluation.run.datasets import load_dataset
from scaffolding_ext.testing import ScriptedWorker
from tests.servers.openai_server import OpenAIServer, Request

CONCURRENCY = 256
FAULTS = ("429", "500", "reset", "reset_mid_stream", "slow", "garbage")
SCRIPTED = "scripted"
QUESTION = "What is 6 * 7?"
CHAIN = "Let me think. " * 10 + "\\boxed{42}"
SLOTS = 512
NOTICE_S = 60.0
NUM_ROWS = 128  # of the model's batch


class Load(NamedTuple):
    """What is asked, and how long it may take.

    Attributes:
        questions: Asked in turn.
        answer: The right one to all; None where nobody knows.
        silence_s: Silence of the server after which a call has failed: above what 256 calls at once take on a busy
            core.
        stuck_s: A request that takes longer counts as hung: more than all its calls may be silent for, repetitions too.
    """

    questions: list[str]
    answer: str | None
    silence_s: float
    stuck_s: float


class Held(NamedTuple):
    """What the process holds at one moment."""

    threads: int
    sockets: int


def held() -> Held:
    """Count threads and sockets (Linux)."""
    links = []
    for path in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(path.readlink()))
        except OSError:  # the descriptor of the listing itself
            continue
    return Held(threading.active_count(), sum(link.startswith("socket:") for link in links))


def reply(task: Any) -> str:
    """The rest of a chain from where the prompt stands, or the answer to a probe."""
    prompt = task.input_str or ""
    return "42}" if prompt.endswith("boxed{") else CHAIN[len(prompt) - len(QUESTION) :]


def load_on(model: str, seed: int) -> Load:
    """The load for a model."""
    if model == SCRIPTED:
        return Load([QUESTION], "42", silence_s=15.0, stuck_s=1_200.0)
    questions = [sample.prompt for sample in load_dataset("tinylm:held_out", seed=seed)]
    return Load(questions, None, silence_s=60.0, stuck_s=1_200.0)


def fault_of(seed: int, share: float) -> Any:
    """Which call goes wrong, and how, by its number alone."""

    def fault(number: int, request: Request) -> str | None:
        rng = random.Random(f"{seed} {number}")
        return rng.choice(FAULTS) if rng.random() < share else None

    return fault


async def soak(worker: OpenAIWorker, num_requests: int, load: Load, seed: int) -> tuple[Counter[str], int]:
    """Run all requests; returns how they ended, and the asyncio tasks that are left."""
    sampling = {"temperature": 0.7}
    stacks = (
        DynasorCoTController(200, certainty_threshold=2, chunk_size=32, sampling_params=sampling),
        DynasorCoTController(200, certainty_threshold=2, chunk_size=32, mode="chunk", sampling_params=sampling),
        MajorityVoteController(NativeGenerationController({"max_tokens": 200, **sampling}), 4, allocation=None),
    )
    outcomes: Counter[str] = Counter()
    num_left = num_requests

    with progress() as bars:
        bar = bars.add_task("requests", total=num_requests)
        hosts = [ScaffoldingLlm(one, {"generation": worker}, CONCURRENCY, seed=seed) for one in stacks]

        async def client() -> None:
            nonlocal num_left
            while num_left > 0:
                num_left -= 1
                question = load.questions[num_left % len(load.questions)]
                result = hosts[num_left % len(hosts)].generate_async(question, sample_id=str(num_left))
                try:
                    answer = (await asyncio.wait_for(result.aresult(), load.stuck_s)).outputs[0].answer
                    is_wrong = load.answer is not None and answer != load.answer
                    outcomes[f"wrong: {answer!r}" if is_wrong else "answered" if answer else "answered without"] += 1
                except ScaffoldingExtError as error:
                    cause = error.__cause__ or error
                    outcomes[f"failed: {type(cause).__name__}"] += 1
                except asyncio.TimeoutError:
                    outcomes["hung"] += 1
                bars.advance(bar)

        await asyncio.gather(*[client() for _ in range(CONCURRENCY)])
        for host in hosts:
            await asyncio.to_thread(host.shutdown)
    return outcomes, len(asyncio.all_tasks()) - 1


def running_at(server: OpenAIServer) -> int:
    """Requests that the server still works on, once it has had time to see that its clients have gone."""
    deadline = time.monotonic() + NOTICE_S
    while server.num_running and time.monotonic() < deadline:
        time.sleep(0.05)
    return server.num_running


@benchmark("engines.openai_soak --seed 1 --model tinylm/draft")
@size("--num_requests", 2_000, quick=200, help="Requests in all.")
@click.option("--fault_share", default=0.1, show_default=True, help="Share of calls that go wrong.")
@click.option("--model", default=SCRIPTED, show_default=True, help="The model behind the server, such as tinylm/draft.")
def main(report: Report, num_requests: int, fault_share: float, model: str) -> None:
    """Requests over a failing server: each ends in an answer or a named error, and all that was taken comes back."""
    seed = report.seed
    report.setting |= {"concurrency": CONCURRENCY, "faults": list(FAULTS)}
    before = held()
    load, fault = load_on(model, seed), fault_of(seed, fault_share)
    with contextlib.ExitStack() as open_parts:
        part = open_parts.enter_context
        served = part(ScriptedWorker(reply) if model == SCRIPTED else HuggingFaceWorker(model, max_batch_size=NUM_ROWS))
        server = part(OpenAIServer(served, model, fault=fault))
        worker = part(
            OpenAIWorker(server.url, model, flavor="vllm", max_concurrency=SLOTS, timeout_seconds=load.silence_s)
        )
        if model == SCRIPTED:
            worker.model = None  # it has no template
        started = time.perf_counter()
        outcomes, num_tasks = asyncio.run(soak(worker, num_requests, load, seed))
        seconds = time.perf_counter() - started
        left = {
            "asyncio tasks": num_tasks,
            "tasks of the worker": worker.num_requests,
            "slots of the worker": SLOTS - worker._connection.num_free_slots,
            "streams of the worker": len(worker._streams),
            "requests at the server": running_at(server),
        }
        worker.shutdown()
    after = held()
    num_faults = sum(fault(number, request) is not None for number, request in enumerate(server.requests))
    left |= {name: getattr(after, name) - getattr(before, name) for name in Held._fields}
    report.figure("seconds", seconds)
    report.figure("calls", len(server.requests))
    report.figure("calls that were made to fail", num_faults)
    for name, number in sorted(outcomes.items()):
        report.share(f"{name}, share", number, num_requests)
    num_wrong = sum(number for name, number in outcomes.items() if not name.startswith(("answered", "failed")))
    report.bar("hung, wrong or missing", num_wrong + num_requests - outcomes.total(), "<=", 0)
    for name, number in left.items():
        report.bar(f"{name} left", number, "<=", 0)


if __name__ == "__main__":
    main()
