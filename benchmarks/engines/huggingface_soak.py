"""Many requests of all kinds against one engine, a third of them cancelled, timed out or unusable: does anything leak?

    python -m benchmarks.engines.huggingface_soak --num_requests 2000 --kv_cache_bytes 6000000

With so little memory for keys and values requests are preempted all the time; what they write is then compared with
what an engine with room for all of them writes.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress

from benchmarks._lib.command import benchmark, progress, size
from benchmarks._lib.report import Report
from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask
from scaffolding_ext.protocol.branching import VerifyTask
from scaffolding_ext.protocol.meta import PROBE, note
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

CONCURRENCY = 256  # requests at once: four times what a step computes, so that some wait
NUM_PREFIXES = 40
STUCK_S = 120.0  # a request that takes longer counts as hung
CAP = 8 * 2**20  # bytes of cached blocks
NUM_TEXTS = 512  # that are compared
LEAST_EQUAL = 0.99  # of them; the sums of a step depend on what else is in it, so a near-tie may go either way


def random_prompt(rng: random.Random, prefixes: list[list[int]]) -> list[int]:
    """A shared prefix, cut anywhere, and some tokens of its own."""
    prefix = rng.choice(prefixes)
    return prefix[: rng.randint(1, len(prefix))] + [rng.randrange(5, 500) for _ in range(rng.randint(0, 12))]


def unusable_task(rng: random.Random) -> Any:
    """A task that must be refused."""
    return rng.choice(
        [
            GenerationTask(input_tokens=[], max_tokens=4),
            GenerationTask(input_tokens=[5], max_tokens=10**6),
            GenerationTask(input_tokens=[5] * 10**4, max_tokens=4),
            GenerationTask(input_tokens=[10**6], max_tokens=4),
            GenerationTask(input_tokens=[5], max_tokens=4, temperature=-1.0),
            GenerationTask(input_tokens=[5], max_tokens=4, n=3),
            ScoreTask(input_tokens=[5]),
            VerifyTask(branches=[[5], []], yes_token=1, no_token=2),
        ]
    )


def usable_task(rng: random.Random, prompt: list[int]) -> Any:
    """A task of any kind that the worker serves."""
    kind = rng.randrange(8)
    if kind == 0:
        return ScoreTask(input_tokens=prompt, continuation_tokens=[rng.randrange(5, 500) for _ in range(6)])
    if kind == 1:
        return VerifyTask(branches=[prompt, [*prompt, 7], prompt[:3]], yes_token=70, no_token=71)
    options: dict[str, Any] = {"input_tokens": prompt, "max_tokens": rng.randint(1, 24), "seed": rng.randrange(10**6)}
    options["temperature"] = rng.choice([None, 0.7, 1.3])
    if kind == 2:
        return StreamGenerationTask(**options, streaming_step=rng.randint(1, 6))
    if kind == 3:
        options["stop"] = ["e", "\n"]
    if kind == 4:
        options["num_logprobs"] = 3
    task = GenerationTask(**options)
    if kind == 5:
        note(task, purpose=PROBE)
    return task


async def serve(worker: HuggingFaceWorker, rng: random.Random, prefixes: list[list[int]]) -> str:
    """Run one random request; returns how it ended, or `"wrong: ..."`."""
    if rng.random() < 0.1:
        try:
            await worker.run_task(unusable_task(rng))
        except InvalidTaskError:
            return "refused"
        return "wrong: an unusable task was served"
    task = usable_task(rng, random_prompt(rng, prefixes))
    fate, delay = rng.random(), rng.random() * 0.2
    if isinstance(task, StreamGenerationTask):
        while not task.end_flag:
            if rng.random() < 0.5:  # some pause, and keep their blocks or lose them
                note(task, may_run_to=len(task.output_tokens or ()) + rng.randint(1, 8))
            await worker.run_task(task)
            if rng.random() < 0.5:
                await asyncio.sleep(rng.random() * 0.05)
            if fate < 0.3:
                task.cancel_flag = True
        return "stream cancelled" if getattr(task, "finish_reason", None) == "cancelled" else "stream finished"
    if fate < 0.12:
        try:
            await asyncio.wait_for(worker.run_task(task), delay)
        except asyncio.TimeoutError:
            return "timed out"
        return "finished"
    running = asyncio.ensure_future(worker.run_task(task))
    if fate < 0.24:
        await asyncio.sleep(delay)
        running.cancel()
        try:
            await running
        except asyncio.CancelledError:
            return "cancelled"
        return "finished"
    await running
    if isinstance(task, GenerationTask) and not 0 < len(task.output_tokens or ()) <= (task.max_tokens or 0):
        return f"wrong: {len(task.output_tokens or ())} tokens of {task.max_tokens}"
    return "finished"


def resident_mib() -> float:
    """Resident memory of this process (Linux)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return float(status.partition("VmRSS:")[2].split()[0]) / 1024


async def soak(worker: HuggingFaceWorker, num_requests: int, seed: int) -> tuple[Counter[str], list[float]]:
    """Run all requests; returns how they ended, and the memory after each tenth of them."""
    rng = random.Random(seed)
    prefixes = [[rng.randrange(5, 500) for _ in range(rng.randint(4, 200))] for _ in range(NUM_PREFIXES)]
    outcomes: Counter[str] = Counter()
    memory: list[float] = []
    left = num_requests

    async def client(bars: Progress, bar: Any) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            if left % (num_requests // 10) == 0:
                gc.collect()
                memory.append(resident_mib())
            try:
                outcome = await asyncio.wait_for(serve(worker, rng, prefixes), STUCK_S)
            except asyncio.TimeoutError:
                outcome = "hung"
            except Exception as error:
                outcome = f"wrong: {error!r}"
            outcomes[outcome] += 1
            bars.advance(bar)

    with progress() as bars:
        bar = bars.add_task("requests", total=num_requests)
        await asyncio.gather(*[client(bars, bar) for _ in range(CONCURRENCY)])
    return outcomes, memory


def settle(worker: HuggingFaceWorker) -> None:
    """Wait until the engine is idle."""
    deadline = time.monotonic() + STUCK_S
    while (worker.metrics.num_running or worker.metrics.num_waiting) and time.monotonic() < deadline:
        time.sleep(0.01)


def texts_of(worker: HuggingFaceWorker, seed: int) -> list[list[int]]:
    """The texts that a worker writes for many requests at once."""
    rng = random.Random(seed)
    prefixes = [[rng.randrange(5, 500) for _ in range(rng.randint(4, 100))] for _ in range(NUM_PREFIXES)]
    tasks = [
        GenerationTask(
            input_tokens=random_prompt(rng, prefixes),
            max_tokens=rng.randint(8, 120),
            temperature=0.7,
            seed=number,
            ignore_eos=True,
        )
        for number in range(NUM_TEXTS)
    ]

    async def run() -> None:
        await asyncio.gather(*[worker.run_task(task) for task in tasks])

    asyncio.run(run())
    return [list(task.output_tokens or ()) for task in tasks]


@benchmark("engines.huggingface_soak")
@size("--num_requests", 20_000, quick=1_000, help="Requests in all.", least=10)
@click.option("--model", default="tinylm/draft", show_default=True, help="The model.")
@click.option("--kv_cache_bytes", type=click.IntRange(1), help="Memory for keys and values.  [default: 4 GiB]")
def main(report: Report, num_requests: int, model: str, kv_cache_bytes: int | None) -> None:
    """Requests that end in all the ways a request can; blocks, memory and tasks must all come back."""
    seed = report.seed
    report.setting |= {"concurrency": CONCURRENCY, "prefix_cache_bytes": CAP}
    worker = HuggingFaceWorker(
        model, prefix_cache_bytes=CAP, max_seq_len=256, prefill_chunk=128, kv_cache_bytes=kv_cache_bytes
    )

    async def run() -> tuple[Counter[str], list[float], int]:
        outcomes, memory = await soak(worker, num_requests, seed)
        return outcomes, memory, len(asyncio.all_tasks()) - 1

    started = time.perf_counter()
    outcomes, memory, num_tasks = asyncio.run(run())
    seconds = time.perf_counter() - started
    settle(worker)
    metrics, engine = worker.metrics, worker._engine
    before = metrics.num_preempted
    texts = texts_of(worker, seed)
    with HuggingFaceWorker(model, max_seq_len=256) as roomy:
        equal = sum(a == b for a, b in zip(texts, texts_of(roomy, seed), strict=True))
    report.figure("preempted_among_texts", worker.metrics.num_preempted - before)
    report.share("texts_equal_to_those_with_room", equal, NUM_TEXTS)
    settle(worker)
    report.figure("seconds", seconds)
    report.figure("tokens_per_s", metrics.num_decoded / seconds)
    report.figure("hit_rate", metrics.num_reused / (metrics.num_reused + metrics.num_prefilled))
    report.figure("evicted_blocks", metrics.num_evicted)
    report.figure("preempted", metrics.num_preempted)
    for name, number in sorted(outcomes.items()):
        report.figure(name, number)
    report.figure("memory_mib_after_a_tenth", memory[0])
    report.figure("memory_mib_at_the_end", memory[-1])
    num_wrong = sum(number for name, number in outcomes.items() if name.startswith(("wrong", "hung")))
    num_missing = num_requests - outcomes.total()
    for name, value, bar in (
        ("requests that hung, ended wrongly or are missing", num_wrong + num_missing, 0),
        ("requests in the engine at the end", metrics.num_running + metrics.num_waiting + metrics.num_paused, 0),
        ("blocks held at the end", metrics.num_held_blocks, 0),
        ("requests that the engine still knows", len(engine._unfinished), 0),
        ("streams that the worker still knows", len(worker._streams), 0),
        ("asyncio tasks left", num_tasks, 0),
        ("cached blocks over their cap", max(0, metrics.num_cached_blocks - engine._batch.pool.max_cached), 0),
        ("memory grown since the second tenth, MiB", memory[-1] - memory[1], 32),
    ):
        report.bar(name, value, "<=", bar)
    report.bar("texts that are those with room", equal / NUM_TEXTS, ">=", LEAST_EQUAL)
    worker.shutdown()


if __name__ == "__main__":
    main()
