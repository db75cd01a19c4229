"""The main job on the embedded model: plain chains, cuts and DynasorCoT, drawn and greedy, and votes that stop early.

    python -m benchmarks.studies.demo --num_problems 100

The fixed cut is given the budget at which it decodes as many tokens as DynasorCoT did, so that the two can be compared
by accuracy. Chains are drawn at temperature 0.7, and once more decoded greedily. Then votes of 8 drawn chains on the
first of the problems: all 8 samples, and the same vote stopped once its winner would probably stay. It ends in
six lines; the picture and the report of the drawn runs have the rest.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.progress import Progress

from benchmarks._lib.command import benchmark, progress, size
from benchmarks._lib.drawing import Figures, frontier
from benchmarks._lib.provenance import PLACE
from benchmarks._lib.report import Report
from benchmarks._lib.runs import (
    CUT,
    DYNASOR,
    GREEDY,
    PLAIN,
    Run,
    add_run,
    add_side_by_side,
    keep_runs,
    run_stack,
    side_by_side,
)
from benchmarks._lib.runs import compare_runs as add_comparison
from scaffolding_ext.documents import write_text
from scaffolding_ext.evaluation.compare.compared import compare_runs, kept_samples
from scaffolding_ext.evaluation.drawing import below, drawing
from scaffolding_ext.evaluation.report.page import rendered
from scaffolding_ext.evaluation.run.datasets import Example, load_dataset
from scaffolding_ext.stats.intervals import Estimate

NUM_VOTES = 8
VOTE, STOPPED_VOTE = f"vote of {NUM_VOTES}", f"vote of {NUM_VOTES}, stopped early"
FIRST_GREEDY = f"{PLAIN}{GREEDY}, of the voted problems"


def show(report: Report) -> None:
    """Print what was compared, what was saved, and where everything is kept."""
    figures, setting = report.figures, report.setting

    def told(key: str, scale: int = 1) -> str:
        return _shown(figures[key], scale)

    saved, points = f"{DYNASOR} against {PLAIN}: decoded saved", f"{DYNASOR} against {PLAIN}: accuracy, points"
    cut = f"{DYNASOR} against {CUT}: accuracy, points"
    vote = f"{STOPPED_VOTE} against {VOTE}"
    fewer, voted = f"{vote}: decoded saved", f"{vote}: accuracy, points"
    print(
        f"{setting['num_problems']} problems on a tiny model: whole chains, and DynasorCoT, which stops settled chains."
    )
    print(f"DynasorCoT decodes {told(saved, 100)} % fewer tokens and is {told(points)} points above whole chains;")
    print(f"above chains that are cut to as many tokens it is {told(cut)} points. All intervals are 95 %.")
    print(
        f"A vote of {NUM_VOTES} that stops when it is settled: {told(fewer, 100)} % fewer tokens, {told(voted)} points."
    )
    for line in report.closing:
        print(line)


def plot(figures: Figures, runs: dict[str, Run], path: Path) -> None:
    """Draw accuracy against decoded tokens, each method with both intervals, and beside it the tokens by purpose."""
    with drawing(path, 1, 2, figsize=(12, 4.8)) as (figure, (left, right)):
        frontier(left, figures, list(runs), default=DYNASOR)
        left.set_title("What lies further left decodes less, what lies higher is right more often")
        below(figure, left, 4)
        _stack_purposes(runs, right)
        right.set_title("What the tokens were decoded for")


def _stack_purposes(runs: dict[str, Run], axes: Any) -> None:
    names = list(runs)
    shades = itertools.cycle(("0.35", "0.55", "0.72", "0.85"))  # colours stand for methods
    base = np.zeros(len(names))
    tokens = [run.summary.mean_tokens_by_purpose for run in runs.values()]
    for purpose in dict.fromkeys(purpose for by_purpose in tokens for purpose in by_purpose):
        means = [by_purpose.get(purpose, {}).get("decoded", 0.0) for by_purpose in tokens]
        if any(means):
            axes.barh(names, means, left=base, label=purpose, color=next(shades))
            base += np.array(means)
    for name, total in zip(names, base, strict=True):
        axes.annotate(f"{total:.0f}", (total, name), (4, 0), textcoords="offset points", va="center")
    axes.set(xlim=(0, 1.12 * base.max()), xlabel="decoded tokens a problem, by purpose")
    axes.invert_yaxis()
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4)


def add_votes(report: Report, bars: Progress, samples: list[Example], greedy: Run, model: str) -> None:
    """Votes, with and without early stop, beside greedy chains of the same problems."""
    shared = (f"seed={report.seed}", f"workers.generation.args.model={model}")
    sampled = f"controller.args.default_sample_num={NUM_VOTES}"
    stack = "configs:majority_vote"
    vote = run_stack(VOTE, stack, samples, bars, (*shared, sampled, "controller.args.allocation=null"))
    stopped = run_stack(STOPPED_VOTE, stack, samples, bars, (*shared, sampled))
    for name, run in ((FIRST_GREEDY, greedy), (VOTE, vote), (STOPPED_VOTE, stopped)):
        add_run(report, name, run)
    add_comparison(report, VOTE, vote, FIRST_GREEDY, greedy)
    add_comparison(report, STOPPED_VOTE, stopped, VOTE, vote)


@benchmark("studies.demo --num_problems 100", show=show)
@size("--num_problems", 200, quick=60, help="Held-out problems.", least=2)
@size("--num_vote_problems", 40, quick=10, help="Of them those that are voted on, too.", least=2)
@click.option("--model", default="tinylm/target", show_default=True, help="Embedded model.")
@click.option("--plot_path", default="runs/demo/demo.png", show_default=True, type=PLACE, help="Where it is drawn.")
@click.option("--report_path", default="runs/demo/report.html", show_default=True, type=PLACE, help="Page to look at.")
def main(
    report: Report, num_problems: int, num_vote_problems: int, model: str, plot_path: Path, report_path: Path
) -> None:
    """Plain chains, fixed cuts, DynasorCoT and votes: accuracy, tokens by purpose, seconds."""
    samples = load_dataset("tinylm:held_out", num_samples=num_problems, seed=report.seed)
    num_vote_problems = min(num_vote_problems, num_problems)
    runs: dict[str, Run] = {}
    with progress() as bars:
        for greedy in (False, True):
            runs |= side_by_side(samples, bars, seed=report.seed, model=model, greedy=greedy)
        add_side_by_side(report, runs)
        plain = runs[PLAIN + GREEDY]
        first = Run(plain.records[:num_vote_problems], plain.seconds * num_vote_problems / num_problems)
        add_votes(report, bars, samples[:num_vote_problems], first, model)
    plot(report.figures, runs, plot_path)
    folders = keep_runs(report_path.parent, {name: runs[name] for name in (PLAIN, CUT, DYNASOR)})
    compared = compare_runs(folders, seed=report.seed)
    write_text(report_path, rendered(compared, kept_samples(compared.runs, num_problems)))
    report.closing = [f"report, with every chain: {report_path}"]  # the picture has told its own path


def _shown(figure: dict[str, Any], scale: int) -> str:
    value, *ends = (None if figure[end] is None else scale * figure[end] for end in Estimate._fields)
    text = f"{value:.1f}"
    return text if None in ends else f"{text} ({ends[0]:.1f} to {ends[1]:.1f})"


if __name__ == "__main__":
    main()
