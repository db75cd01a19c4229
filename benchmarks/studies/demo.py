"""The main job on the embedded model: plain chain of thought, a fixed cut, and DynasorCoT on held-out problems.

    python -m benchmarks.studies.demo --num_problems 100

The fixed cut is given the budget at which it decodes as many tokens as DynasorCoT did, so that the two can be compared
by accuracy. Each method runs the same problems with the same seeds: until it stops, DynasorCoT writes the very chain
that the plain run writes.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks._lib.report import Report, report_options
from scaffolding_ext import load_stack
from scaffolding_ext.evaluation.datasets import Sample, load_dataset
from scaffolding_ext.evaluation.records import Record
from scaffolding_ext.evaluation.report import Summary, summarize
from scaffolding_ext.evaluation.runner import evaluate
from scaffolding_ext.maths.statistics import Estimate, paired_bootstrap, paired_bootstrap_ratio

PLAIN, CUT, DYNASOR = "plain CoT", "fixed cut", "DynasorCoT"
PIPE_WIDTH = 110  # columns, where no terminal says how many there are
FORCED_ANSWER_LEN = 4  # tokens of a forced answer, about: what the fixed cut decodes beyond its budget


class Run(NamedTuple):
    """One method on all problems.

    Attributes:
        records: In the order of the problems.
        seconds: Wall-clock time of the whole run.
    """

    records: list[Record]
    seconds: float

    @property
    def summary(self) -> Summary:
        return summarize(self.records)

    @property
    def decoded(self) -> list[int]:
        return [record.ledger["total"]["decoded"] for record in self.records]

    @property
    def computed(self) -> list[int]:
        return [record.ledger["total"]["decoded"] + record.ledger["total"]["prefilled"] for record in self.records]

    @property
    def correct(self) -> list[float]:
        return [float(bool(record.correct)) for record in self.records]


def run_method(name: str, config: str, samples: list[Sample], seed: int, progress: Progress, *overrides: str) -> Run:
    """Run one stack file on the samples."""
    bar = progress.add_task(name, total=len(samples))
    with load_stack(config, overrides=(f"seed={seed}", *overrides)) as llm:
        started = time.perf_counter()
        records = evaluate(llm, samples, on_record=lambda record: progress.advance(bar))
        seconds = time.perf_counter() - started
    failed = [record.error for record in records if record.error is not None]
    if failed:
        raise click.ClickException(f"{len(failed)} of {len(samples)} samples failed; the first: {failed[0]}")
    return Run(records, seconds)


def matching_budget(chain_lengths: list[int], mean_tokens: float) -> int:
    """The fixed cut whose mean of decoded tokens comes closest to `mean_tokens` on chains of these lengths."""
    lengths = np.array(chain_lengths)
    budgets = np.arange(1, lengths.max() + 1)
    means = [np.minimum(lengths, b).mean() + FORCED_ANSWER_LEN * (lengths > b).mean() for b in budgets]
    return int(budgets[np.argmin(np.abs(np.array(means) - mean_tokens))])


def show(runs: dict[str, Run], report: Report) -> None:
    """Print the comparison."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    table = Table("", *runs, title=f"{report.setting['num_problems']} held-out problems, seed {report.setting['seed']}")
    for column in table.columns[1:]:
        column.justify = "right"

    def row(label: str, cells: list[str]) -> None:
        table.add_row(label, *cells)

    def figures(key: str, form: str) -> list[str]:
        return [_shown(report.figures.get(f"{name}: {key}"), form) for name in runs]

    row("accuracy, % (95 % interval)", figures("accuracy", "percent"))
    row("  difference to plain CoT, points", figures("accuracy difference", "percent"))
    row("decoded tokens, mean", figures("decoded tokens", "number"))
    purposes = dict.fromkeys(p for run in runs.values() for p in run.summary.mean_tokens_by_purpose)
    for purpose in purposes:
        means = [run.summary.mean_tokens_by_purpose.get(purpose, {}).get("decoded", 0.0) for run in runs.values()]
        if any(means):
            row(f"  {purpose}", [f"{mean:.1f}" for mean in means])
    row("  saved, %", figures("decoded tokens saved", "percent"))
    row("computed tokens (decoded and prefilled), mean", figures("computed tokens", "number"))
    row("  saved, %", figures("computed tokens saved", "percent"))
    row("seconds for all problems", figures("seconds", "number"))
    row("how it ended", [", ".join(f"{k} {v}" for k, v in run.summary.exit_reasons.items()) for run in runs.values()])
    console.print(table)
    console.print(
        f"The fixed cut closes thinking after {report.setting['fixed_cut']} tokens: it decodes as many as DynasorCoT.\n"
        "Decoded tokens hold everything generated: chains, probes, forced answers, discarded work.\n"
        "Intervals are 95 %, paired by problem where two methods are compared."
    )
    against = report.figures[f"{DYNASOR} over {CUT}: accuracy difference"]
    console.print(f"At equal tokens DynasorCoT is {_shown(against, 'percent')} points above the fixed cut.")


def plot(runs: dict[str, Run], path: Path) -> None:
    """Draw accuracy against decoded tokens, each method with both intervals, and beside it the tokens by purpose."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    rng = np.random.default_rng(0)
    for name, run in runs.items():
        tokens = paired_bootstrap(run.decoded, np.zeros(len(run.decoded)), rng=rng)
        accuracy = Estimate(float(np.mean(run.correct)), *run.summary.accuracy_interval)
        left.errorbar(
            tokens.value,
            100 * accuracy.value,
            xerr=[[tokens.value - tokens.low], [tokens.high - tokens.value]],
            yerr=[[100 * (accuracy.value - accuracy.low)], [100 * (accuracy.high - accuracy.value)]],
            fmt="o",
            capsize=4,
            elinewidth=5 if name == CUT else 1.5,  # two methods of equal tokens lie above each other
            alpha=0.5 if name == CUT else 1,
            label=name,
        )
    left.set_xlabel("decoded tokens a problem, all purposes")
    left.set_ylabel("accuracy, %")
    left.grid(alpha=0.3)
    left.legend(loc="upper center", bbox_to_anchor=(0.5, 1.14), ncols=len(runs), frameon=False)
    _stack_purposes(runs, right)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _stack_purposes(runs: dict[str, Run], axes: Any) -> None:
    names = list(runs)
    shades = itertools.cycle(("0.35", "0.55", "0.72", "0.85"))  # colours stand for methods
    base = np.zeros(len(names))
    for purpose in dict.fromkeys(purpose for run in runs.values() for purpose in run.summary.mean_tokens_by_purpose):
        means = [run.summary.mean_tokens_by_purpose.get(purpose, {}).get("decoded", 0.0) for run in runs.values()]
        if any(means):
            axes.barh(names, means, left=base, label=purpose, color=next(shades))
            base += np.array(means)
    for name, total in zip(names, base, strict=True):
        axes.annotate(f"{total:.0f}", (total, name), (4, 0), textcoords="offset points", va="center")
    axes.set_xlim(0, 1.12 * base.max())
    axes.invert_yaxis()
    axes.set_xlabel("decoded tokens a problem, by purpose")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.14), ncols=4, frameon=False)


@click.command(epilog="Example: python -m benchmarks.studies.demo --num_problems 100 --json")
@report_options
@click.option("--num_problems", default=400, show_default=True, help="Held-out problems; --quick takes 60 at most.")
@click.option("--model", default="tinylm/target", show_default=True, help="Embedded model.")
@click.option("--plot_path", default="runs/demo/demo.png", show_default=True, type=click.Path(path_type=Path))
def main(seed: int, quick: bool, as_json: bool, num_problems: int, model: str, plot_path: Path) -> None:
    """Plain chain of thought, fixed cut and DynasorCoT side by side: accuracy, tokens by purpose, seconds."""
    num_problems = min(60, num_problems) if quick else num_problems
    samples = load_dataset("tinylm:held_out", num_samples=num_problems, seed=seed)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    worker = f"workers.generation.args.model={model}"
    runs: dict[str, Run] = {}
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as progress:
        runs[PLAIN] = run_method(PLAIN, "configs:native", samples, seed, progress, worker)
        dynasor = run_method(DYNASOR, "configs:dynasor_cot", samples, seed, progress, worker)
        budget = matching_budget(runs[PLAIN].decoded, float(np.mean(dynasor.decoded)))
        cut = f"controller.args.max_thinking_tokens={budget}"
        runs[CUT] = run_method(CUT, "configs:budget_forcing", samples, seed, progress, worker, cut)
        runs[DYNASOR] = dynasor
    setting = {"seed": seed, "num_problems": num_problems, "model": model, "temperature": 0.7, "fixed_cut": budget}
    report = Report("demo", setting)
    add_figures(report, runs, seed)
    plot(runs, plot_path)
    if as_json:
        report.show(as_json=True)
        return
    show(runs, report)
    console.print(f"Plot: {plot_path}")


def add_figures(report: Report, runs: dict[str, Run], seed: int) -> None:
    """Every figure with its interval; what is compared is paired by problem."""
    plain = runs[PLAIN]
    for name, run in runs.items():
        summary = run.summary
        report.figure(f"{name}: accuracy", summary.accuracy or 0.0, *summary.accuracy_interval)
        report.figure(f"{name}: decoded tokens", summary.mean_decoded_tokens or 0.0)
        report.figure(f"{name}: computed tokens", summary.mean_computed_tokens or 0.0)
        report.figure(f"{name}: seconds", run.seconds)
        if run is plain:
            continue
        rng = np.random.default_rng(seed)
        report.figure(f"{name}: accuracy difference", *paired_bootstrap(run.correct, plain.correct, rng=rng))
        for key, ours, theirs in (
            ("decoded tokens saved", run.decoded, plain.decoded),
            ("computed tokens saved", run.computed, plain.computed),
        ):
            ratio = paired_bootstrap_ratio(ours, theirs, rng=rng)
            saved = Estimate(1 - ratio.value, 1 - ratio.high, 1 - ratio.low)
            report.figure(f"{name}: {key}", *saved)
    rng = np.random.default_rng(seed)
    against_cut = paired_bootstrap(runs[DYNASOR].correct, runs[CUT].correct, rng=rng)
    report.figure(f"{DYNASOR} over {CUT}: accuracy difference", *against_cut)


def _shown(figure: dict[str, Any] | None, form: str) -> str:
    if figure is None:
        return ""
    scale = 100 if form == "percent" else 1
    value, low, high = (None if figure[key] is None else scale * figure[key] for key in ("value", "low", "high"))
    text = f"{value:.1f}"
    return text if low is None or high is None else f"{text} ({low:.1f}..{high:.1f})"


if __name__ == "__main__":
    main()
