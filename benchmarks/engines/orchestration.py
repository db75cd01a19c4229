"""What the host costs: a vote of 16 over an instant worker, beside a bare `create_task` + `gather` in the same run.

    python -m benchmarks.engines.orchestration --quick
    python -m benchmarks.engines.orchestration --other ../before    # beside other checkouts, in turn, in one run

Times are CPU time of the process. An instant worker never waits, so on a machine of one's own that is wall-clock, and
beside other work it is still the host's own.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import click

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.provenance import commit
from benchmarks._lib.report import Report
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask, TaskStatus, Worker

WIDTH = 16
NUM_REQUESTS = (64, 512, 4096, 16384)
LARGEST_RATIO = 4.0  # of a task's CPU time to that of a bare one
LEAST_REQUESTS = 2048  # a smaller size is run so often that its time is more than the clock's noise


class InstantWorker(Worker):
    """Answers at once."""

    async def _generate(self, task: GenerationTask) -> TaskStatus:
        task.output_str = "\\boxed{1}"
        task.output_tokens = [1]
        return TaskStatus.SUCCESS

    task_handlers: ClassVar[dict[Any, Any]] = {GenerationTask: _generate}


def microseconds_a_task(num_requests: int) -> float:
    """One run through the host, from the first submission to the last result."""
    controller = MajorityVoteController(NativeGenerationController({"temperature": 0.7}), WIDTH, allocation=None)
    with ScaffoldingLlm(controller, {"generation": InstantWorker()}, seed=0) as llm:
        llm.generate(["warm up"] * 8)
        num_runs = max(1, LEAST_REQUESTS // num_requests)
        gc.collect()
        start = time.process_time()
        for _ in range(num_runs):
            llm.generate(["question"] * num_requests)
        seconds = time.process_time() - start
    return seconds / (num_runs * num_requests * WIDTH) * 1e6


def bare_microseconds_a_task(num_requests: int) -> float:
    """The same number of instant coroutines by `create_task` + `gather`, 16 at a time, 64 groups at once."""

    async def trivial() -> None:
        return None

    async def one_bare() -> None:
        await asyncio.gather(*[asyncio.create_task(trivial()) for _ in range(WIDTH)])

    async def run(one: Any) -> None:
        for begin in range(0, num_requests, 64):
            await asyncio.gather(*[asyncio.create_task(one()) for _ in range(min(64, num_requests - begin))])

    async def run_all() -> float:
        start = time.process_time()
        for _ in range(num_runs):
            await run(one_bare)
        return time.process_time() - start

    num_runs = max(1, LEAST_REQUESTS // num_requests)
    gc.collect()
    return asyncio.run(run_all()) / (num_runs * num_requests * WIDTH) * 1e6


def peak_memory_mib(num_requests: int) -> float:
    """Peak resident memory of a fresh process that runs that many requests."""
    there = "benchmarks.engines.orchestration"
    code = f"import {there} as own; own.microseconds_a_task({num_requests}); print(own.own_peak_mib())"
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=root)
    return float(run.stdout)


def ratio_in(checkout: Path, num_requests: int) -> float:
    """The ratio to the bare tasks, in a process of its own that runs the code of a checkout."""
    own = f"own.microseconds_a_task({num_requests}) / own.bare_microseconds_a_task({num_requests})"
    code = f"import benchmarks.engines.orchestration as own; print({own})"
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=checkout, env=environment
    )
    return float(run.stdout)


def compare(report: Report, others: Sequence[Path], repetitions: int, num_requests: int) -> None:
    """The ratio here and in other checkouts, in turn: A B C, C B A, and so on. Intervals hold every repetition."""
    here = Path(__file__).resolve().parents[2]
    ratios: dict[Path, list[float]] = {checkout: [] for checkout in (here, *others)}
    for repetition in track(range(repetitions), "rounds"):
        for checkout in list(ratios)[:: 1 if repetition % 2 == 0 else -1]:
            ratios[checkout].append(ratio_in(checkout, num_requests))
    for checkout, values in ratios.items():
        name = "here" if checkout == here else commit(checkout)[:7]
        report.figure(f"ratio_{num_requests}_{name}", statistics.median(values), min(values), max(values))
        if checkout != here:
            quotients = [mine / theirs for mine, theirs in zip(ratios[here], values, strict=True)]
            report.figure(f"here_by_{name}", statistics.median(quotients), min(quotients), max(quotients))
    report.bar(f"ratio to bare tasks, {num_requests} requests", statistics.median(ratios[here]), "<=", LARGEST_RATIO)


def own_peak_mib() -> float:
    """Peak resident memory of this process (Linux; `ru_maxrss` would carry the parent's over)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return float(status.partition("VmHWM:")[2].split()[0]) / 1024


@benchmark("engines.orchestration")
@click.option("--repetitions", default=5, show_default=True, help="Runs of each size; the median counts.")
@size("--num_sizes", len(NUM_REQUESTS), quick=2, help="Sizes: 64, 512, 4,096 and 16,384 requests.")
@click.option("--other", multiple=True, type=click.Path(exists=True, file_okay=False), help="Another checkout.")
def main(report: Report, repetitions: int, num_sizes: int, other: tuple[str, ...]) -> None:
    """Microseconds a task, in ratio to a bare create_task + gather, from 64 to 16,384 requests of 16 tasks."""
    del report.setting["other"]  # paths
    report.setting |= {"width": WIDTH, "load": os.getloadavg()[0]}
    if other:
        checkouts = [Path(path).resolve() for path in other]
        report.setting |= {"num_requests": NUM_REQUESTS[1], "others": [commit(path) for path in checkouts]}
        compare(report, checkouts, repetitions, NUM_REQUESTS[1])
        return
    sizes = NUM_REQUESTS[:num_sizes]
    report.setting["sizes"] = list(sizes)
    samples: dict[int, list[tuple[float, float]]] = {num: [] for num in sizes}
    for _ in range(repetitions):  # sizes in turn, so that a drift of the machine's speed meets all of them
        for num in sizes:
            samples[num].append((microseconds_a_task(num), bare_microseconds_a_task(num)))
    for num in sizes:
        ratios = sorted(ours / bare for ours, bare in samples[num])
        ours = sorted(value for value, _ in samples[num])
        bare = sorted(value for _, value in samples[num])
        middle = repetitions // 2
        report.figure(f"microseconds_a_task_{num}", ours[middle], ours[0], ours[-1])
        report.figure(f"bare_microseconds_a_task_{num}", bare[middle], bare[0], bare[-1])
        report.figure(f"ratio_{num}", ratios[middle], ratios[0], ratios[-1])
        report.figure(f"peak_memory_mib_{num}", peak_memory_mib(num))
        report.bar(f"ratio to bare create_task + gather, {num} requests", ratios[middle], "<=", LARGEST_RATIO)
    if len(sizes) == len(NUM_REQUESTS):
        growth = sorted(
            big[0] / small[0] for big, small in zip(samples[NUM_REQUESTS[-1]], samples[NUM_REQUESTS[1]], strict=True)
        )[repetitions // 2]
        report.bar("growth from 512 to 16,384 requests", growth, "<=", 1.10)


if __name__ == "__main__":
    main()
