"""Votes that stop early, live: accuracy, decoded and computed tokens and seconds of each rule against the full vote.

    python -m benchmarks.studies.voting --num_problems 200 --output_path runs/voting.json --plot_path runs/voting.png

Every method runs the same held-out problems with the same seeds, and a sample's seed depends on its index alone, so
the full vote's samples are the very ones that a stopped vote drew the first of. Intervals are 95 %, paired by problem.
What the rules would do on many orders of the same samples, and on real models' samples, `vote_replay.py` tells.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from rich.progress import Progress

from benchmarks._lib.report import Bar, Report, report_options
from scaffolding_ext import load_config, load_stack
from scaffolding_ext.evaluation.datasets import Sample, load_dataset
from scaffolding_ext.evaluation.records import Record
from scaffolding_ext.evaluation.runner import evaluate
from scaffolding_ext.maths.statistics import paired_bootstrap, paired_bootstrap_ratio

FULL, OURS, THINKING = "all samples", "leader change (ours)", "leader change over DynasorCoT"
PEERS = ("curtailment", "Adaptive-Consistency 0.95", "early stopping, window 4")
DYNASOR = "configs:dynasor_cot"


def methods(miss: float) -> dict[str, dict[str, Any]]:
    """Arguments of the vote, by name of the method."""

    def rule(name: str, **settings: Any) -> dict[str, Any]:
        return {"type": name, "args": settings}

    ours = rule("LeaderChange", miss=miss)
    return {
        "one sample": {"default_sample_num": 1, "allocation": None},
        FULL: {"allocation": None},
        "curtailment": {"allocation": rule("Curtailment", leap=1.0)},
        "Adaptive-Consistency 0.95": {"allocation": rule("BetaConsistency")},
        "early stopping, window 4": {"allocation": rule("EarlyStoppingWindow", window=4)},
        "certaindex 0.7 every 4": {"allocation": rule("ThresholdEvery", threshold=0.7, step=4)},
        OURS: {"allocation": ours},
        THINKING: {"allocation": ours, "generation_controller": None},
        f"{THINKING}, at once": {"allocation": ours, "generation_controller": None, "launch": "at_once"},
    }


class Run(NamedTuple):
    """One method on all problems.

    Attributes:
        records: In the order of the problems.
        seconds: Wall-clock time of the whole run.
    """

    records: list[Record]
    seconds: float

    @property
    def correct(self) -> list[float]:
        return [float(bool(record.correct)) for record in self.records]

    def tokens(self, *kinds: str) -> list[int]:
        return [sum(record.ledger["total"][kind] for kind in kinds) for record in self.records]

    def voted(self, key: str) -> list[Any]:
        return [next(event[key] for event in record.trace if event["event"] == "vote") for record in self.records]

    @property
    def num_rounds(self) -> float:
        return float(np.mean([sum(e["event"] == "allocate" for e in record.trace) for record in self.records]))


def run_method(
    vote: dict[str, Any], samples: list[Sample], num: int, model: str, seed: int, parallel: int, max_tokens: int
) -> Run:
    """Run one vote on the problems."""
    params = {"temperature": 0.7, "max_tokens": max_tokens}
    chain: dict[str, Any] = {"type": "NativeGenerationController", "args": {"sampling_params": params}}
    if "generation_controller" in vote:
        chain = load_config(DYNASOR, [f"controller.args.max_tokens={max_tokens}"]).controller.model_dump()
    stack = {
        "controller": {
            "type": "MajorityVoteController",
            "args": {"default_sample_num": num} | vote | {"generation_controller": chain},
        },
        "workers": {"generation": {"type": "HuggingFaceWorker", "args": {"model": model}}},
        "seed": seed,
        "max_parallel_requests": parallel,
    }
    with load_stack(stack) as llm:
        started = time.perf_counter()
        records = evaluate(llm, samples)
        seconds = time.perf_counter() - started
    failed = [record.error for record in records if record.error is not None]
    if failed:
        raise click.ClickException(f"{len(failed)} of {len(samples)} samples failed; the first: {failed[0]}")
    return Run(records, seconds)


def add_figures(report: Report, runs: dict[str, Run], max_samples: int, seed: int) -> None:
    """Every method beside the full vote, and ours beside its peers."""
    full = runs[FULL]
    for name, run in runs.items():
        rng = np.random.default_rng(seed)
        report.figure(f"{name}: accuracy", float(np.mean(run.correct)))
        report.figure(f"{name}: decoded tokens", float(np.mean(run.tokens("decoded"))))
        report.figure(f"{name}: samples that voted", float(np.mean(run.voted("num_samples"))))
        report.figure(f"{name}: rounds", run.num_rounds)
        report.figure(f"{name}: seconds", run.seconds)
        stopped = [number < max_samples for number in run.voted("num_samples")]
        report.figure(f"{name}: stopped early, share", float(np.mean(stopped)))
        if run is full:
            continue
        gain = paired_bootstrap(run.correct, full.correct, rng=rng)
        report.figure(f"{name}: accuracy difference, points", *(100 * value for value in gain))
        decoded = paired_bootstrap_ratio(run.tokens("decoded"), full.tokens("decoded"), rng=rng)
        report.figure(f"{name}: decoded tokens, share of all", *decoded)
        kinds = ("decoded", "prefilled")
        computed = paired_bootstrap_ratio(run.tokens(*kinds), full.tokens(*kinds), rng=rng)
        report.figure(f"{name}: computed tokens, share of all", *computed)
        report.figure(f"{name}: seconds, share of all", run.seconds / full.seconds)
    for peer in PEERS:
        ratio = paired_bootstrap_ratio(
            runs[OURS].tokens("decoded"), runs[peer].tokens("decoded"), rng=np.random.default_rng(seed)
        )
        report.figure(f"ours against {peer}: decoded tokens", *ratio)
        report.bar(Bar.at_most(f"decoded tokens against {peer}, upper end", ratio.high, 1.0))
    low = report.figures[f"{OURS}: accuracy difference, points"]["low"]
    report.bar(Bar.at_least("accuracy against all samples, points, lower end", float(low or 0.0), -1.0))
    share = report.figures[f"{THINKING}: decoded tokens, share of all"]["high"]
    report.bar(Bar.at_most("decoded tokens with DynasorCoT inside, share of all, upper end", float(share or 0.0), 0.45))


def plot(runs: dict[str, Run], path: Path) -> None:
    """Draw accuracy against decoded tokens, with intervals, a point a method."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    rng = np.random.default_rng(0)
    for name, run in runs.items():
        if name == "one sample":
            continue
        correct = np.array(run.correct)
        draws = correct[rng.integers(0, len(correct), (2000, len(correct)))].mean(axis=1)
        value = correct.mean()
        low, high = np.quantile(draws, (0.025, 0.975))
        tokens = float(np.mean(run.tokens("decoded")))
        axes.errorbar(
            tokens, 100 * value, yerr=[[100 * (value - low)], [100 * (high - value)]], fmt="o", capsize=3, label=name
        )
    axes.set_xlabel("decoded tokens a problem")
    axes.set_ylabel("accuracy of the vote, % (95 %)")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


@click.command(help=__doc__)
@report_options
@click.option("--num_problems", type=click.IntRange(min=2), default=200, show_default=True, help="Held-out problems.")
@click.option("--num_samples", type=click.IntRange(min=2), default=16, show_default=True, help="Most samples a vote.")
@click.option("--max_tokens", type=click.IntRange(min=1), default=1200, show_default=True, help="Budget of a chain.")
@click.option("--miss", type=float, default=0.1, show_default=True, help="Our rule's probability of a changed winner.")
@click.option("--model", default="tinylm/target", show_default=True, help="Embedded model or folder.")
@click.option("--parallel", type=click.IntRange(min=1), default=8, show_default=True, help="Votes that run at once.")
@click.option("--output_path", type=click.Path(dir_okay=False, path_type=Path), help="JSON file for the figures.")
@click.option("--plot_path", type=click.Path(dir_okay=False, path_type=Path), help="Picture of accuracy and tokens.")
def main(
    as_json: bool,
    quick: bool,
    seed: int,
    num_problems: int,
    num_samples: int,
    max_tokens: int,
    miss: float,
    model: str,
    parallel: int,
    output_path: Path | None,
    plot_path: Path | None,
) -> None:
    if quick:
        num_problems, num_samples, max_tokens = min(num_problems, 2), min(num_samples, 2), min(max_tokens, 60)
    samples = load_dataset("tinylm:held_out", num_samples=num_problems, seed=seed)
    runs: dict[str, Run] = {}
    with Progress(transient=True, disable=as_json) as progress:
        bar = progress.add_task("methods", total=len(methods(miss)))
        for name, vote in methods(miss).items():
            runs[name] = run_method(vote, samples, num_samples, model, seed, parallel, max_tokens)
            progress.advance(bar)
    setting = {"seed": seed, "problems": num_problems, "samples": num_samples, "model": model, "miss": miss}
    report = Report("votes that stop early, live", setting | {"parallel": parallel})
    add_figures(report, runs, num_samples, seed)
    if plot_path is not None:
        plot(runs, plot_path)
    if output_path is not None:
        output_path.parent.mkdir(parents=True, exist_ok=True)
        output_path.write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
    report.show(as_json)


if __name__ == "__main__":
    main()
