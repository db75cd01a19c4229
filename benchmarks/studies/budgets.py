"""Budgets of thinking by type of question: swept on an embedded model, planned, and served under Poisson arrivals.

    python -m benchmarks.studies.budgets --store runs/budgets --json > budgets.json

Each seed does all of it on questions of its own. Runs of `scaffolding-ext eval` at several budgets tell what each type
gains, and other questions, alone with the engine, tell the seconds. The plan for an arrival rate then serves beside
every single budget for all types, and beside itself with the types of the questions dealt out by chance: as many
questions get each budget, but not the ones that need it. All of these meet the same questions and arrivals.

The best single budget is the one that did best of all when it was served, on all seeds together: it is picked on the
questions that it is compared on, which favours it. What a mistake costs depends on the user, so that the objective is
told in points of accuracy: 100 times a right answer, less the seconds over those that a right answer is worth.
Intervals resample blocks of arrivals, since neighbours in a queue are alike.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt

from benchmarks._lib.budget_arms import ARMS, BY_CHANCE, PLAN, SINGLE, Load, Server, single
from benchmarks._lib.budget_types import BUDGETS, questions, sweep, timed
from benchmarks._lib.command import benchmark, plotted, progress, size, stored
from benchmarks._lib.drawing import Figures, below, drawing, of, point, points
from benchmarks._lib.report import Report
from benchmarks._lib.store import kept
from scaffolding_ext import HuggingFaceWorker, Prompting
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats
from scaffolding_ext.evaluation.calibrate.budget_sweep import Swept, read_sweep
from scaffolding_ext.stats.power import required_num_questions
from scaffolding_ext.tinylm.grammar import KINDS

BLOCK = 20  # arrivals that are drawn together
TIMED_SEED = 4000  # of questions, beside those of the sweep
RESAMPLES = 1000
P95 = 95
Blocks = npt.NDArray[np.int64]


class Arm(NamedTuple):
    """What one arm came to at a load, over all seeds.

    Attributes:
        correct: 1 where the answer was right, else 0, shape [num_questions].
        seconds: From arrival to answer, likewise.
        objective: In points of accuracy, likewise.
        beyond: Forecast accuracy less that of the question, likewise.
        forecast_seconds: Forecast system time, likewise.
    """

    correct: Floats
    seconds: Floats
    objective: Floats
    beyond: Floats
    forecast_seconds: Floats

    @classmethod
    def of(cls, runs: Sequence[Mapping[str, Any]], arm: str) -> Arm:
        """Of the runs of all seeds."""
        columns = []
        for run in runs:
            found = run["arms"][arm]
            correct, seconds = np.array(found["correct"]), np.array(found["seconds"])
            accuracy, system_time = found["forecast"]
            columns.append(
                (
                    correct,
                    seconds,
                    100 * (correct - seconds / run["alpha"]),
                    accuracy - correct,
                    np.full(len(correct), system_time),
                )
            )
        return cls(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def blocks_of(sizes: Sequence[int]) -> Blocks:
    """The block of each arrival; no block lies in two seeds, and each seed has two at least."""
    parts, first = [], 0
    for number in sizes:
        parts.append(first + np.arange(number) // max(1, min(BLOCK, number // 2)))
        first = int(parts[-1][-1]) + 1
    return np.concatenate(parts)


def study_load(report: Report, name: str, runs: Mapping[int, Mapping[str, Any]]) -> None:
    """All arms at one load, and the plan against each of them.

    Args:
        report: Gets the figures.
        name: Of the queue and the load.
        runs: By seed.
    """
    sizes = [len(run["arms"][PLAN]["correct"]) for run in runs.values()]
    blocks = blocks_of(sizes)
    arms = {arm: Arm.of(list(runs.values()), arm) for arm in ARMS}
    report.figure(f"{name}: questions an arm", len(blocks))
    tails = p95_of(report, arms, blocks)
    for arm, found in arms.items():
        report.difference(f"{name}, {arm}: accuracy", found.correct, questions=blocks)
        report.difference(f"{name}, {arm}: system time", found.seconds, questions=blocks)
        report.figure(f"{name}, {arm}: p95 of system time", *ends(tails[arm]))
        report.difference(f"{name}, {arm}: objective, points", found.objective, questions=blocks)
        report.difference(f"{name}, {arm}: forecast less served, points", found.beyond, questions=blocks, scale=100)
        if np.isfinite(found.forecast_seconds).all():
            report.ratio(f"{name}, {arm}: forecast by served time", found.forecast_seconds, found.seconds, blocks)
    best = max(map(single, SINGLE), key=lambda arm: float(arms[arm].objective.mean()))
    report.figure(f"{name}: best single budget", SINGLE[[*map(single, SINGLE)].index(best)])
    for label, other in (("the best single budget", best), ("types by chance", BY_CHANCE)):
        ours, theirs = arms[PLAN], arms[other]
        gain = report.difference(f"{name}: over {label}, points", ours.objective, theirs.objective, blocks)
        report.difference(f"{name}: over {label}, points of accuracy", ours.correct, theirs.correct, blocks, scale=100)
        report.ratio(f"{name}: system time, times {label}", ours.seconds, theirs.seconds, blocks)
        report.figure(f"{name}: p95, times {label}", *ends(tails[PLAN] / tails[other]))
        report.bar(f"{name}: over {label}, lower end", gain.low, ">", 0)
        gains = ours.objective - theirs.objective
        needed = required_num_questions(gains, blocks, bar=0, max_num_questions=100_000, rng=report.rng)
        if needed is not None:
            report.figure(f"{name}: blocks of {BLOCK} for power 0.9 over {label}", needed)
        for seed, values in zip(runs, np.split(np.stack([gains, blocks]), np.cumsum(sizes)[:-1], axis=1), strict=True):
            report.difference(f"{name}, seed {seed}: over {label}, points", values[0], questions=values[1].astype(int))
    for seed, run in runs.items():
        report.figure(f"{name}, seed {seed}: arrivals a second", run["arrival_rate"])
        report.figure(f"{name}, seed {seed}: capacity", run["capacity"])
        report.figure(f"{name}, seed {seed}: seconds that a right answer is worth", run["alpha"])
        for kind, budget in run["plan"].items():
            report.figure(f"{name}, seed {seed}, plan: tokens of {kind}", budget)


def p95_of(report: Report, arms: Mapping[str, Arm], blocks: Blocks) -> dict[str, Floats]:
    """The 95th percentile of each arm's seconds: measured, then of resamples that all arms share."""
    places = [np.flatnonzero(blocks == block) for block in np.unique(blocks)]
    drawn = report.rng.integers(len(places), size=(RESAMPLES, len(places)))
    picks = [np.arange(len(blocks)), *(np.concatenate([places[at] for at in row]) for row in drawn)]
    return {arm: np.array([np.percentile(found.seconds[pick], P95) for pick in picks]) for arm, found in arms.items()}


def ends(values: Floats) -> tuple[float, float, float]:
    """A figure and its interval: what was measured, then its resamples."""
    low, high = np.percentile(values[1:], (2.5, 97.5)).tolist()
    return float(values[0]), low, high


def study_swept(report: Report, swept: Sequence[Swept]) -> None:
    """What budgets are worth to each type, over all seeds."""
    for kinds in zip(*(each.kinds for each in swept), strict=True):
        for at, budget in enumerate(kinds[0].budgets):
            num, total = (int(sum(counts[at] for counts in columns)) for columns in counts_of(kinds))
            report.share(f"swept, {kinds[0].kind}, {budget} tokens: accuracy", num, total)
        misses = [100 * kind.accuracy.largest_miss for kind in kinds]
        report.figure(f"swept, {kinds[0].kind}: largest miss of the saturating curve, points", max(misses))


def counts_of(kinds: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Right answers and all answers of one kind, an entry a seed."""
    return [kind.num_correct for kind in kinds], [kind.num_answers for kind in kinds]


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
@size("--seconds", 30, quick=2, help="Of arrivals, for each arm of a queue at a load.")
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
    asked = [Load(share, middle, worth, seconds) for share in loads]
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
                    demands = [server.demand(swept[-1], took, load) for load in asked]
                    return [server.arms(demand, seconds) for demand in demands]

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
