"""Budgets of thinking by type of question: swept on an embedded model, planned, and served under Poisson arrivals.

    python -m benchmarks.studies.budgets --store runs/budgets --json > budgets.json

Each seed does all of it on questions of its own. Runs of `scaffolding-ext eval` at several budgets tell what each type
gains, and other questions, alone with the engine, tell the seconds. The plan for an arrival rate then serves beside
every single budget for all types, and beside itself with the types of the questions dealt out by chance: as many
questions get each budget, but not the ones that need it. All of these meet the same questions and arrivals.

The best single budget is the one that did best of all when it was served, on all seeds together; that of each seed is
the one that did best on this seed. Both are picked on the questions that they are compared on, which favours them: the
plan is made before. The objective is told in points of accuracy: 100 for a right answer, less 100 times the seconds
over those that a right answer is worth. Intervals resample blocks of arrivals, since neighbours in a queue are alike.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks._lib.budget_arms import ARMS, BY_CHANCE, PLAN, Load, Server
from benchmarks._lib.budget_gains import Gains
from benchmarks._lib.budget_types import BUDGETS, questions, sweep, timed
from benchmarks._lib.command import benchmark, plotted, progress, size, stored
from benchmarks._lib.drawing import Figures, below, drawing, of, point, points
from benchmarks._lib.report import Report
from benchmarks._lib.store import kept
from scaffolding_ext import HuggingFaceWorker, Prompting
from scaffolding_ext.evaluation.calibrate.budget_sweep import Swept, read_sweep
from scaffolding_ext.tinylm.grammar import KINDS

TIMED_SEED = 4000  # of questions, beside those of the sweep


def study_load(report: Report, name: str, runs: Mapping[int, Mapping[str, Any]]) -> None:
    """One queue at one load."""
    gains = Gains(report, name, runs)
    gains.add_arms()
    gains.add_gains()
    for seed, run in runs.items():
        report.figure(f"{name}, seed {seed}: arrivals a second", run["arrival_rate"])
        report.figure(f"{name}, seed {seed}: capacity", run["capacity"])
        report.figure(f"{name}, seed {seed}: seconds that a right answer is worth", run["alpha"])
        for kind, budget in run["plan"].items():
            report.figure(f"{name}, seed {seed}, plan: tokens of {kind}", budget)


def study_swept(report: Report, swept: Sequence[Swept]) -> None:
    """What budgets are worth to each type, over all seeds."""
    for kinds in zip(*(each.kinds for each in swept), strict=True):
        for at, budget in enumerate(kinds[0].budgets):
            num, total = sum(kind.num_correct[at] for kind in kinds), sum(kind.num_answers[at] for kind in kinds)
            report.share(f"swept, {kinds[0].kind}, {budget} tokens: accuracy", num, total)
        misses = [100 * kind.accuracy.largest_miss for kind in kinds]
        report.figure(f"swept, {kinds[0].kind}: largest miss of the saturating curve, points", max(misses))


def plot(figures: Figures, path: Path) -> None:
    """Draw what thinking is worth to each type; then how right and how fast each arm was, a row a queue."""
    found = [name.removesuffix(": best single budget") for name in figures if name.endswith(": best single budget")]
    queues = list(dict.fromkeys(name.split(", ")[0] for name in found))
    loads = list(dict.fromkeys(name.split(", ")[1] for name in found))
    shape = len(queues), 1 + len(loads)
    with drawing(path, *shape, squeeze=False, figsize=(4 * shape[1], 0.8 + 3.6 * shape[0])) as (figure, axes):
        figure.suptitle("Further left is sooner, higher is right more often; the line joins the single budgets")
        gains(axes[0, 0], figures)
        for row, queue in enumerate(queues):
            axes[row, 0].set_visible(row == 0)
            for column, load in enumerate(loads, 1):
                frontier(axes[row, column], figures, f"{queue}, {load}")
        below(figure, axes[0, 1], 4)


def gains(axes: Any, figures: Figures) -> None:
    """What budgets are worth to each type."""
    for number, kind in enumerate(KINDS):
        found = {budget: of(figures, f"swept, {kind}, {budget} tokens: accuracy", 100) for budget in BUDGETS}
        measured = {budget: value for budget, value in found.items() if value is not None}
        points(axes, list(measured), list(measured.values()), color=f"C{number}")
        if measured:
            axes.annotate(kind, (BUDGETS[-1], measured[BUDGETS[-1]].value), (6, 0), textcoords="offset points")
    axes.set(xlabel="budget of thinking, tokens", ylabel="accuracy, %")
    axes.set_title("What thinking is worth, by type")


def frontier(axes: Any, figures: Figures, name: str) -> None:
    """Each arm's point at one load; single budgets are joined by a line."""
    line = []
    for number, arm in enumerate(ARMS):
        x, y = of(figures, f"{name}, {arm}: system time"), of(figures, f"{name}, {arm}: accuracy", 100)
        if x is not None and y is not None:
            point(axes, x, y, arm, is_default=arm == PLAN, color=f"C{number}", ms=5)
            if arm not in (PLAN, BY_CHANCE):
                line.append((x.value, y.value))
    axes.plot(*zip(*line, strict=True), "-", color="C7", lw=1)
    axes.set(xlabel="mean seconds to the answer", ylabel="accuracy, %", title=name)


@benchmark("studies.budgets --store runs/budgets")
@click.option("--model", default="tinylm/target", show_default=True, help="Embedded model, or a folder.")
@click.option("--worth", default=20.0, show_default=True, help="A right answer, in services of --middle tokens.")
@click.option(
    "--load",
    "loads",
    multiple=True,
    type=float,
    default=(0.4, 0.6, 0.8),
    show_default=True,
    help="Share of the capacity that --middle for all would use.",
)
@click.option("--middle", default=96, show_default=True, help="Tokens.")
@click.option("--places", "queues", multiple=True, type=int, default=(16, 1), show_default=True, help="At once.")
@size("--num_seeds", 5, quick=2, help="From --seed on.", least=2)
@size("--num_swept", 80, quick=2, help="Questions a type that are swept.")
@size("--num_timed", 3, quick=1, help="Questions a type and budget that are timed alone.")
@size("--seconds", 20, quick=2, help="Of arrivals, for each arm of a queue at a load.")
@stored
@plotted
def main(
    report: Report,
    model: str,
    worth: float,
    loads: tuple[float, ...],
    middle: int,
    queues: tuple[int, ...],
    num_seeds: int,
    num_swept: int,
    num_timed: int,
    seconds: int,
    store: Path | None,
    plot_path: Path | None,
) -> None:
    """A plan of budgets by type against every single budget, and against types by chance, in served queues."""
    prompting = Prompting.for_model(model)
    seeds = range(report.seed, report.seed + num_seeds)
    asked = [Load(share, middle, worth) for share in loads]
    swept: list[Swept] = []
    runs: dict[int, dict[int, list[dict[str, Any]]]] = {places: {} for places in queues}
    with tempfile.TemporaryDirectory() as folder, HuggingFaceWorker(model) as worker, progress() as bars:
        bar = bars.add_task("seeds", total=num_seeds * len(queues))
        for seed in seeds:
            place = (store or Path(folder)) / f"seed_{seed}"
            swept.append(read_sweep(sweep(place, model, questions(num_swept, seed)), seed=seed))
            for places in queues:
                server = Server(worker, prompting, places, seed)

                def served(seed: int = seed, server: Server = server) -> list[dict[str, Any]]:
                    took = timed(worker, prompting, num_timed, seed + TIMED_SEED)
                    return [server.arms(server.demand(swept[-1], took, load), seconds) for load in asked]

                runs[places][seed] = kept(place, f"served_{places}", served)
                bars.advance(bar)
    study_swept(report, swept)
    for places in queues:
        for at, load in enumerate(asked):
            name = f"{places} at once, load {load.share:g}"
            study_load(report, name, {seed: found[at] for seed, found in runs[places].items()})
    if plot_path is not None:
        plot(report.figures, plot_path)


if __name__ == "__main__":
    main()
