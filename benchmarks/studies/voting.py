"""Votes that stop early, live: accuracy, decoded and computed tokens and seconds of each rule against the full vote.

    python -m benchmarks.studies.voting --num_problems 200 --plot_path runs/voting.png

Every method runs the same held-out problems with the same seeds, and a sample's seed depends on its index alone, so
the full vote's samples are the very ones that a stopped vote drew the first of. Intervals are 95 %, paired by problem.
One greedy chain stands beside them, by itself, cut, and with DynasorCoT: what a vote has to beat.
What the rules would do on many orders of the same samples, and on real models' samples, `vote_replay` tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks._lib.command import benchmark, plotted, progress, size
from benchmarks._lib.drawing import Figures, beside, drawing, frontier
from benchmarks._lib.report import Report
from benchmarks._lib.runs import TEMPERATURE, Run, add_run, compare_runs, run_stack, side_by_side
from scaffolding_ext import load_config
from scaffolding_ext.evaluation.run.datasets import load_dataset

ONE, FULL = "one sample", "all samples"
OURS, THINKING = "leader change (ours)", "leader change over DynasorCoT"
SMALLER = (2, 4, 6, 8)  # samples of plain votes
PEERS = ("curtailment", "Adaptive-Consistency 0.95", "early stopping, window 4")


def methods(miss: float) -> dict[str, dict[str, Any]]:
    """Arguments of the vote, by name of the method."""

    def rule(name: str, **settings: Any) -> dict[str, Any]:
        return {"type": name, "args": settings}

    ours = rule("LeaderChange", miss=miss)
    return {
        ONE: {"default_sample_num": 1, "allocation": None},
        **{f"vote of {number}": {"default_sample_num": number, "allocation": None} for number in SMALLER},
        FULL: {"allocation": None},
        "curtailment": {"allocation": rule("Curtailment", leap=1.0)},
        "Adaptive-Consistency 0.95": {"allocation": rule("BetaConsistency")},
        "early stopping, window 4": {"allocation": rule("EarlyStoppingWindow", window=4)},
        "certaindex 0.7 every 4": {"allocation": rule("ThresholdEvery", threshold=0.7, step=4)},
        OURS: {"allocation": ours},
        THINKING: {"allocation": ours, "generation_controller": None},
    }


def stack_of(vote: dict[str, Any], num_samples: int, max_tokens: int, **shared: Any) -> dict[str, Any]:
    """The stack of a vote; `generation_controller: None` stands for DynasorCoT as it is configured."""
    params = {"temperature": TEMPERATURE, "max_tokens": max_tokens}
    chain: dict[str, Any] = {"type": "NativeGenerationController", "args": {"sampling_params": params}}
    if "generation_controller" in vote:
        config = load_config("configs:dynasor_cot", [f"controller.args.max_tokens={max_tokens}"])
        chain = config.controller.model_dump()
    arguments = {"default_sample_num": num_samples} | vote | {"generation_controller": chain}
    arguments["default_sample_num"] = min(num_samples, arguments["default_sample_num"])
    return {"controller": {"type": "MajorityVoteController", "args": arguments}, **shared}


def add_votes(report: Report, runs: dict[str, Run], max_samples: int) -> None:
    """How many samples each vote took, and in how many rounds."""
    for name, run in runs.items():
        traces = [record.trace for record in run.records]
        voted = [next(e["num_samples"] for e in trace if e["event"] == "vote") for trace in traces]
        rounds = [sum(event["event"] == "allocate" for event in trace) for trace in traces]
        report.figure(f"{name}: samples that voted", float(np.mean(voted)))
        report.figure(f"{name}: rounds", float(np.mean(rounds)))
        report.figure(f"{name}: stopped early, share", float(np.mean(np.array(voted) < max_samples)))


def compare(report: Report, runs: dict[str, Run]) -> None:
    """Every method beside the full vote, and ours beside its peers."""
    for name, run in runs.items():
        add_run(report, name, run)
        if name != FULL:
            compare_runs(report, name, run, FULL, runs[FULL])
    for peer in PEERS:
        ratio = report.ratio(f"{OURS} against {peer}: decoded tokens", runs[OURS].decoded, runs[peer].decoded)
        report.bar(f"decoded tokens against {peer}, upper end", ratio.high, "<=", 1.0)
    lowest = report.figures[f"{OURS} against {FULL}: accuracy, points"]["low"] or 0.0
    report.bar("accuracy against all samples, points, lower end", lowest, ">=", -1.0)
    saved = report.figures[f"{THINKING} against {FULL}: decoded saved"]["low"] or 0.0
    report.bar("decoded tokens saved with DynasorCoT inside, lower end", saved, ">=", 0.55)


def plot(figures: Figures, names: Sequence[str], path: Path) -> None:
    """Draw accuracy against decoded tokens, with intervals, a point a method."""
    with drawing(path, figsize=(10, 5)) as (_, axes):
        frontier(axes, figures, names, default=OURS)
        axes.set_title("A vote pays where it lies above every point to its left, the greedy chain's among them")
        beside(axes)


@benchmark("studies.voting --num_problems 200 --plot_path runs/voting.png")
@size("--num_problems", 200, quick=2, help="Held-out problems.", least=2)
@size("--num_samples", 16, quick=2, help="Most samples a vote.", least=2)
@size("--max_tokens", 1200, quick=60, help="Budget of a chain.")
@click.option("--miss", type=float, default=0.1, show_default=True, help="Our rule's probability of a changed winner.")
@click.option("--model", default="tinylm/target", show_default=True, help="Embedded model or folder.")
@click.option("--parallel", type=click.IntRange(min=1), default=8, show_default=True, help="Votes that run at once.")
@plotted
def main(
    report: Report,
    num_problems: int,
    num_samples: int,
    max_tokens: int,
    miss: float,
    model: str,
    parallel: int,
    plot_path: Path | None,
) -> None:
    """Votes that stop early, live, against the vote of all samples and against one greedy chain."""
    samples = load_dataset("tinylm:held_out", num_samples=num_problems, seed=report.seed)
    shared = {
        "workers": {"generation": {"type": "HuggingFaceWorker", "args": {"model": model}}},
        "seed": report.seed,
        "max_parallel_requests": parallel,
    }
    with progress() as bars:
        votes = {
            name: run_stack(name, stack_of(vote, num_samples, max_tokens, **shared), samples, bars)
            for name, vote in methods(miss).items()
        }
        single = side_by_side(samples, bars, seed=report.seed, model=model, greedy=True, max_tokens=max_tokens)
    add_votes(report, votes, num_samples)
    compare(report, votes | single)
    if plot_path is not None:
        plot(report.figures, [name for name in votes | single if name != ONE], plot_path)


if __name__ == "__main__":
    main()
