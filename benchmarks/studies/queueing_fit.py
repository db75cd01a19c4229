"""The queueing paper's curve of accuracy on real chains: A, b and D by type, and the budgets that follow from them.

    python -m benchmarks.studies.queueing_fit --data FOLDER --plot_path queueing_fit.png

A chain of Qwen3 was asked for its answer every 500 tokens, which gives its answer under each budget; the types are
AIME24, AIME25 and HMMT25. Each half of the questions chooses budgets for the other half: by the paper's curve and its
service time, which takes every chain to use its whole budget, or among the measured budgets with the tokens that chains
used. Both are judged by measured accuracy and tokens, at the seconds a token of the paper's AIME (Table I) and at the
rate at which whole chains keep its single server half busy. Intervals resample questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks._lib.command import benchmark, plotted, recorded, size, track
from benchmarks._lib.interval_controllers import INTERVAL
from benchmarks._lib.report import Report
from benchmarks.studies.autotts import MODELS, Asked, read_chains
from scaffolding_ext.controllers.budgets.files import TaskTypes
from scaffolding_ext.controllers.budgets.queueing.fits import AccuracyFit, fit_accuracy
from scaffolding_ext.controllers.budgets.queueing.grid import MeasuredType, solve_on_grid
from scaffolding_ext.controllers.budgets.queueing.model import Moments, pollaczek_khinchine
from scaffolding_ext.controllers.budgets.queueing.plan import solve
from scaffolding_ext.controllers.budgets.queueing.tasks import TaskType
from scaffolding_ext.evaluation.drawing import below, drawing

Floats = npt.NDArray[np.float64]
BUDGETS = tuple(INTERVAL * steps for steps in (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 56, 64))
TASKS = ("aime24", "aime25", "hmmt25")
ALPHAS = (30, 300, 3000)  # seconds that a right answer is worth; 30 is the paper's
HALF = 0.5  # load of whole chains
AIME = TaskTypes.load("configs:calibrations/queueing_table_1.yaml").tasks[0]


class Budgeted(NamedTuple):
    """Chains of some questions under each budget; each array has shape [num_questions, num_budgets].

    Attributes:
        seconds: Mean seconds of service.
        square: Mean of the squared seconds.
    """

    right: Floats
    seconds: Floats
    square: Floats

    def of(self, questions: npt.NDArray[np.int64]) -> Budgeted:
        return Budgeted(*(column[questions] for column in self))


def budgeted(asked: Sequence[Asked]) -> Budgeted:
    """Answers and seconds of each question under each budget; a chain that has ended keeps its answer."""
    right, seconds, square = (np.empty((len(asked), len(BUDGETS))) for _ in Budgeted._fields)
    for row, each in enumerate(asked):
        lengths = np.array([chain.num_tokens for chain in each.chains])
        for column, budget in enumerate(BUDGETS):
            look = budget // INTERVAL - 1
            answers = [chain.probes[look] if look < len(chain.probes) else chain.answer for chain in each.chains]
            served = AIME.t0 + AIME.c * np.minimum(lengths, budget)
            right[row, column] = np.mean([answer == each.target for answer in answers])
            seconds[row, column], square[row, column] = served.mean(), (served**2).mean()
    return Budgeted(right, seconds, square)


def fitted(own: Budgeted, num_chains: int, rng: np.random.Generator) -> AccuracyFit:
    total = np.full(len(BUDGETS), len(own.right) * num_chains)
    return fit_accuracy(BUDGETS, np.rint(own.right.sum(axis=0) * num_chains), total, rng, num_resamples=1)


def plans(
    types: Mapping[str, Budgeted], num_chains: int, rate: float, alpha: float, rng: np.random.Generator
) -> list[list[int]]:
    """Places in `BUDGETS` of each type's budget: by the paper's curve, and among the measured ones."""
    share = 1 / len(types)
    fits = {name: fitted(own, num_chains, rng) for name, own in types.items()}
    curves = [TaskType(name, share, f.A.value, f.b.value, f.D.value, AIME.t0, AIME.c) for name, f in fits.items()]
    smooth = solve(curves, rate, alpha, BUDGETS[-1]).budgets
    measured = [
        MeasuredType(
            name,
            share,
            BUDGETS,
            tuple(own.right.mean(axis=0)),
            tuple(own.seconds.mean(axis=0)),
            tuple(np.sqrt(np.maximum(0, own.square.mean(axis=0) - own.seconds.mean(axis=0) ** 2))),
        )
        for name, own in types.items()
    ]
    grid = solve_on_grid(measured, rate, alpha).budgets
    return [[int(np.abs(np.array(BUDGETS) - budget).argmin()) for budget in plan] for plan in (smooth, grid)]


def worths(
    types: Sequence[Budgeted], plan: Sequence[int], rate: float, alpha: float, weights: Sequence[Floats]
) -> Floats:
    """The objective of a plan, by measured accuracy and seconds, under each row of weights of the questions."""
    sums = sum(
        np.stack([weight @ column[:, at] for column in own]) / len(types)
        for own, at, weight in zip(types, plan, weights, strict=True)
    )
    return np.asarray(alpha * sums[0] - pollaczek_khinchine(rate, Moments(sums[1], sums[2])))


def resampled(num: int, rng: np.random.Generator, num_resamples: int) -> Floats:
    """Weights of questions, each row with a sum of 1: equal ones, then those of resamples."""
    drawn = rng.multinomial(num, np.full(num, 1 / num), num_resamples) / num
    return np.vstack([np.full(num, 1 / num), drawn])


def figure(report: Report, name: str, values: Floats) -> None:
    report.figure(name, float(values[0]), *map(float, np.quantile(values[1:], (0.025, 0.975))))


def add_fits(report: Report, model: str, types: Mapping[str, Budgeted], num_chains: int, num_resamples: int) -> None:
    """A, b and D of each type, and how far the curve is from the measured accuracies."""
    for task, own in types.items():
        num = len(own.right)
        draws = [np.arange(num), *report.rng.integers(num, size=(num_resamples, num))]
        fits = [fitted(own.of(draw), num_chains, report.rng) for draw in track(draws, f"{model} {task}")]
        figure(report, f"{model}, {task}: A", np.array([fit.A.value for fit in fits]))
        figure(report, f"{model}, {task}: b, 1e-4", np.array([1e4 * fit.b.value for fit in fits]))
        report.figure(f"{model}, {task}: D", fits[0].D.value)
        report.figure(f"{model}, {task}: largest miss", fits[0].largest_miss)
        gaps = own.right.mean(axis=0) - fits[0].at(BUDGETS)
        report.figure(f"{model}, {task}: budget of the largest miss", BUDGETS[int(np.abs(gaps).argmax())])


def add_plans(report: Report, model: str, types: Mapping[str, Budgeted], num_chains: int, num_resamples: int) -> None:
    """Budgets by both ways, judged on the half of the questions that did not choose."""
    rate = HALF / np.mean([own.seconds[:, -1].mean() for own in types.values()])
    report.figure(f"{model}: arrivals per second", float(rate))
    halves = {task: np.array_split(report.rng.permutation(len(own.right)), 2) for task, own in types.items()}
    for alpha in ALPHAS:
        both: list[list[Floats]] = [[], []]
        for chooses, judges in ((0, 1), (1, 0)):
            chosen = plans(
                {task: own.of(halves[task][chooses]) for task, own in types.items()},
                num_chains,
                rate,
                alpha,
                report.rng,
            )
            judged = [own.of(halves[task][judges]) for task, own in types.items()]
            weights = [resampled(len(own.right), report.rng, num_resamples) for own in judged]
            for found, plan in zip(both, chosen, strict=True):
                found.append(worths(judged, plan, rate, alpha, weights))
        whole = plans(types, num_chains, rate, alpha, report.rng)
        curve, grid = (np.mean(found, axis=0) for found in both)
        figure(report, f"{model}, alpha {alpha}: objective by the curve", curve)
        figure(report, f"{model}, alpha {alpha}: measured budgets over the curve", grid - curve)
        for way, plan in zip(("the curve", "measured budgets"), whole, strict=True):
            for task, at in zip(types, plan, strict=True):
                report.figure(f"{model}, alpha {alpha}: tokens of {task} by {way}", BUDGETS[at])


def plot(types: Mapping[str, Mapping[str, Budgeted]], num_chains: int, rng: np.random.Generator, path: Path) -> None:
    """Measured accuracy by budget, and the fitted curve."""
    with drawing(path, 1, len(types), figsize=(3.6 * len(types), 4), squeeze=False, sharey=True) as (picture, axes):
        for axis, (model, own) in zip(axes[0], types.items(), strict=True):
            for number, (task, each) in enumerate(own.items()):
                axis.plot(BUDGETS, 100 * each.right.mean(axis=0), "o", color=f"C{number}", label=task)
                axis.plot(BUDGETS, 100 * fitted(each, num_chains, rng).at(BUDGETS), color=f"C{number}")
            axis.set(title=f"Qwen3-{model}", xlabel="budget, tokens")
        axes[0][0].set_ylabel("right, % (dots); A (1 - exp(-b l)) + D (lines)")
        below(picture, axes[0][0], len(TASKS))


@benchmark("studies.queueing_fit --data FOLDER")
@recorded
@size("--num_resamples", 400, quick=20, help="Resamples of the questions.")
@plotted
def main(report: Report, data: Path, num_resamples: int, plot_path: Path | None) -> None:
    """The paper's curve of accuracy and budgets by type, fitted to chains of a real model."""
    asked = list(read_chains(data))
    num_chains = len(asked[0].chains)
    types = {
        model: {task: budgeted([each for each in asked if (each.model, each.task) == (model, task)]) for task in TASKS}
        for model in MODELS
    }
    for model, own in types.items():
        add_fits(report, model, own, num_chains, num_resamples)
        add_plans(report, model, own, num_chains, num_resamples)
    if plot_path is not None:
        plot(types, num_chains, report.rng, plot_path)


if __name__ == "__main__":
    main()
