"""What the KV probe decides, whether whole tasks bear it out, and what it costs.

    python -m benchmarks.studies.sharing_probe

Eight branches are written on a prefix of random tokens by three workers that know none of it: one that probes, one that
shares unasked, and one that computes each branch on its own. A figure is the median over rounds, in CPU seconds of this
process; intervals are 95 %, by bootstrap. What the probe itself finds is wall-clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import click
import numpy as np

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.report import Report
from benchmarks.studies.kv_sharing import NUM_BRANCHES, median
from scaffolding_ext.protocol.branching import BranchTask
from scaffolding_ext.request.program import Program, enter_program, leave_program
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

SUFFIX_LEN, NUM_TOKENS = 8, 32
MOST_REGRET = 1.1
WORKERS: tuple[dict[str, Any], ...] = ({"probes_sharing": True}, {}, {"enable_block_reuse": False})


class Run(NamedTuple):
    """One task.

    Attributes:
        cpu_s: CPU seconds.
        trace: Of its program.
    """

    cpu_s: float
    trace: list[dict[str, Any]]


def written(model: str, options: dict[str, Any], prefix: list[int], suffixes: list[list[int]]) -> Run:
    """Branches by a worker that has seen one other task, of another length: the first pass of a process is slow."""
    seeds = list(range(NUM_BRANCHES))
    with HuggingFaceWorker(model, threads=1, **options) as worker:
        warm = BranchTask(prefix_tokens=[7], suffixes=suffixes, max_tokens=NUM_TOKENS, temperature=0.7, seeds=seeds)
        asyncio.run(worker.run_task(warm))
        task = BranchTask(prefix_tokens=prefix, suffixes=suffixes, max_tokens=NUM_TOKENS, temperature=0.7, seeds=seeds)
        program = Program()
        enter_program(program)
        started = time.process_time()
        asyncio.run(worker.run_task(task))
        cpu_s = time.process_time() - started
        leave_program()
    return Run(cpu_s, program.trace)


@benchmark("studies.sharing_probe --num_rounds 20")
@click.option("--model", default="tinylm/target", show_default=True, help="The model.")
@click.option("--prefix_len", "lengths", type=int, multiple=True, help="Tokens.  [default: 64, 128, 256, 512, 1024]")
@size("--num_rounds", 10, quick=2, help="Prefixes of each length.", least=2)
def main(report: Report, model: str, lengths: tuple[int, ...], num_rounds: int) -> None:
    """What the probe finds and costs by length of the prefix, beside tasks that share and tasks that do not."""
    lengths = lengths or ((64,) if report.setting["quick"] else (64, 128, 256, 512, 1024))
    report.setting |= {"prefix_len": lengths, "num_branches": NUM_BRANCHES, "num_tokens": NUM_TOKENS, "threads": 1}
    regrets = []
    for length in track(lengths, "lengths"):
        rounds = []
        for _ in range(num_rounds):
            sizes = (length, *[SUFFIX_LEN] * NUM_BRANCHES)
            prefix, *suffixes = (report.rng.integers(5, 500, size).tolist() for size in sizes)
            rounds.append([written(model, options, prefix, suffixes) for options in WORKERS])
        regrets.append(_figures(report, f"n {length}: ", *zip(*rounds, strict=True)))
    report.bar("what was decided, to the better of both, the worst of the lengths", max(regrets), "<=", MOST_REGRET)


def _figures(report: Report, name: str, probing: Sequence[Run], shared: Sequence[Run], alone: Sequence[Run]) -> float:
    """What was decided and what it cost; returns the seconds that follow from it, to those of the better way."""
    probes = [next(event for event in run.trace if event["event"] == "sharing_probe") for run in probing]
    found = [NUM_BRANCHES * (p["whole_s"] - p["suffix_s"]) - p["prefix_s"] for p in probes]
    saved = [own.cpu_s - other.cpu_s for own, other in zip(alone, shared, strict=True)]
    spent = [own.cpu_s - other.cpu_s for own, other in zip(probing, shared, strict=True)]
    report.share(f"{name}decided to share", sum(event["shares"] for event in probes), len(probes))
    median(f"{name}seconds that sharing saves, as probed", found, report)
    median(f"{name}seconds that it saves", saved, report)
    median(f"{name}seconds of the probe", spent, report)
    median(
        f"{name}the probe, to a task that shares", [s / run.cpu_s for s, run in zip(spent, shared, strict=True)], report
    )
    ways = [float(np.median([run.cpu_s for run in runs])) for runs in (alone, shared)]
    return float(np.mean([ways[event["shares"]] for event in probes])) / min(ways)


if __name__ == "__main__":
    main()
