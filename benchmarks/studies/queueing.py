"""The paper's plan of budgets, computed anew, and its formula of a queue beside simulated queues.

    python -m benchmarks.studies.queueing --seed 0 --plot_path queueing.png

The types are those of Table I of arXiv 2601.10274. A million queries scatter by about 2 % at a load of 0.9, so more are
simulated there. The picture has the paper's figures 3 and 4. For types of your own: `plan`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks._lib.command import benchmark, plotted, size
from benchmarks._lib.report import Report
from scaffolding_ext.controllers.budgets.files import TaskTypes
from scaffolding_ext.controllers.budgets.queueing.model import Moments, kkt_residual, objective, pollaczek_khinchine
from scaffolding_ext.controllers.budgets.queueing.plan import solve
from scaffolding_ext.controllers.budgets.queueing.rounding import lower_bound
from scaffolding_ext.controllers.budgets.queueing.solvers import SOLVERS, projected_gradient
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats, Mix
from scaffolding_ext.evaluation.drawing import drawing
from scaffolding_ext.stats.intervals import Estimate

MAX_TOKENS = 32768
LOADS = {0.3: 0.04, 0.6: 0.1, 0.9: 1.0}  # and the share of the queries that it takes
TABLE_1 = "configs:calibrations/queueing_table_1.yaml"
PRINTED = (0, 340.5, 0, 0, 345.0, 30.1)  # its optimum
PRINTED_OBJECTIVES = {0: 5.832, 100: 8.239, 500: 1.794}  # figure 3: of so many tokens for all
SLICED, LONGEST = 1, 1000  # figure 4: the budget of GSM8K, up to so many tokens
NUM_ROUNDINGS = 20_000
CHUNK = 1_000_000  # queries that are simulated at a time
BATCHES = 40  # means of so many batches of queries are nearly independent
WARM_UP = 0.02  # share of the first queries that is not counted, since the queue starts empty

Services = Callable[[np.random.Generator, int], Floats]
"""Draws a number of service times, in seconds."""


def study_table_1(report: Report, plot_path: Path | None) -> None:
    """The paper's printed optimum, its figures 3 and 4, its solvers, and the bound of eq. 41 under random roundings."""
    mix = Mix.of(TaskTypes.load(TABLE_1).tasks, 0.1, 30, MAX_TOKENS)
    plan = solve(mix.tasks, 0.1, 30, MAX_TOKENS)
    optimum = np.array(plan.budgets)
    for task, budget in zip(mix.tasks, plan.budgets, strict=True):
        report.figure(f"Table I: budget of {task.name}", budget)
    report.bar("Table I: KKT residual of the plan", plan.kkt_residual, "<=", 1e-8)
    report.bar("Table I: objective lost by whole budgets", plan.objective - plan.integer_objective, "<=", 1e-3)
    for name, solver in SOLVERS.items():
        distance = float(np.abs(solver(mix, np.zeros(len(mix.tasks))) - optimum).max())
        report.bar(f"Table I: {name} from the plan, tokens", distance, "<=", 0.01)
    report.bar("Table I: farthest from the printed optimum, tokens", float(np.abs(optimum - PRINTED).max()), "<=", 1.5)
    alike = {tokens: float(objective(mix, np.full(6, float(tokens)))) for tokens in PRINTED_OBJECTIVES}
    off = max(abs(alike[tokens] - printed) for tokens, printed in PRINTED_OBJECTIVES.items())
    report.bar("Table I, figure 3: farthest from the printed objectives", off, "<=", 0.001)
    slices = np.tile(optimum, (LONGEST + 1, 1))
    slices[:, SLICED] = np.arange(LONGEST + 1)
    values, bounds = objective(mix, slices), lower_bound(mix, slices)
    report.figure("Table I, figure 4: tokens of GSM8K with the largest objective", int(values.argmax()))
    report.figure("Table I: contraction at the optimum, eq. 26", plan.contraction)
    stands = projected_gradient(mix, np.zeros(6), step=1 / plan.lipschitz)
    report.figure("Table I: residual of the paper's constant step after 20,000 steps", kkt_residual(mix, stands))
    budgets = report.rng.uniform(0, 400, (NUM_ROUNDINGS, 6))
    rounded = np.floor(budgets) + report.rng.integers(0, 2, budgets.shape)
    broken = int((objective(mix, rounded) < lower_bound(mix, budgets)).sum())
    report.bar(f"Table I: random roundings below eq. 41, of {NUM_ROUNDINGS:,}", broken, "<=", 0)
    if plot_path is None:
        return
    with drawing(plot_path, 1, 2, figsize=(13, 4.5)) as (_, (bars, curves)):
        named = {f"{tokens} for all": value for tokens, value in alike.items()}
        named["optimum"] = float(objective(mix, optimum))
        bars.bar(list(named), list(named.values()))
        bars.set(ylabel="objective", title="Figure 3: the optimum must be the highest bar")
        curves.plot(slices[:, SLICED], values, label="objective")
        curves.plot(slices[:, SLICED], bounds, "--", label="no rounding falls below (eq. 41)")
        curves.set(
            xlabel="tokens of GSM8K, the others at the optimum",
            title="Figure 4: the largest objective is at the optimum's budget",
        )
        curves.legend()


def waiting_times(gaps: Floats, services: Floats, backlog: float = 0.0) -> tuple[Floats, float]:
    """Seconds that each query waits for one server, first come first served.

    Lindley: W' = max(0, W + S - A). Summed up, the wait is the walk of S - A minus its running minimum.

    Args:
        gaps: Seconds between consecutive arrivals, shape [num_queries].
        services: Seconds of service, shape [num_queries].
        backlog: Seconds of work in the queue when the first gap begins.

    Returns:
        The waits, shape [num_queries], and the work in the queue right after the last arrival.
    """
    steps = -gaps
    steps[0] += backlog
    steps[1:] += services[:-1]
    walk = np.cumsum(steps)
    waits = walk - np.minimum(np.minimum.accumulate(walk), 0)
    return waits, float(waits[-1] + services[-1])


def simulate_fifo(
    services: Services, arrival_rate: float, num_queries: int, rng: np.random.Generator
) -> tuple[Estimate, int]:
    """Simulate Poisson arrivals at one server, a chunk of queries at a time to bound memory.

    Returns:
        Mean seconds of waiting and service, with a 95 % interval from means of long batches; and the queries counted.
    """
    size = min(CHUNK, num_queries // BATCHES)
    first, backlog, means = int(WARM_UP * num_queries), 0.0, []
    counted = (num_queries - first) // size * size
    total, done, times = first + counted, 0, np.empty(0)
    while done < total:
        number = min(CHUNK, total - done)
        served = services(rng, number)
        waits, backlog = waiting_times(rng.standard_exponential(number) / arrival_rate, served, backlog)
        times = np.concatenate([times, (waits + served)[max(first - done, 0) :]])
        whole = len(times) // size * size
        means.extend(times[:whole].reshape(-1, size).mean(axis=1))
        times, done = times[whole:], done + number
    batches = np.asarray(means)
    if len(batches) > BATCHES:  # longer batches are closer to independent
        batches = batches[: len(batches) // BATCHES * BATCHES].reshape(BATCHES, -1).mean(axis=1)
    value, half = float(batches.mean()), 1.96 * float(batches.std(ddof=1)) / np.sqrt(len(batches))
    return Estimate(value, value - half, value + half), counted


def study_simulation(report: Report, num_queries: int) -> None:
    """Lindley's recursion against Pollaczek-Khinchine at three loads."""
    seconds, shares = np.array([0.3, 1.0, 4.0]), np.array([0.5, 0.35, 0.15])
    ends = np.cumsum(shares)[:-1]
    for load, part in LOADS.items():
        rate = load / float(seconds @ shares)
        formula = float(pollaczek_khinchine(rate, Moments(seconds @ shares, seconds**2 @ shares)))
        found, counted = simulate_fifo(
            lambda rng, number: seconds[np.searchsorted(ends, rng.random(number))],
            rate,
            max(int(part * num_queries), 100_000),
            report.rng,
        )
        ratio = [value / formula for value in found]
        report.figure(f"simulated by formula, load {load}, {counted:,} queries", *ratio)
        if num_queries >= 20_000_000:
            report.bar(f"distance from the formula, load {load}", abs(ratio[0] - 1), "<=", 0.01)


@benchmark("studies.queueing --seed 0")
@size("--num_queries", 50_000_000, quick=200_000, help="Queries simulated at a load of 0.9.")
@plotted
def main(report: Report, num_queries: int, plot_path: Path | None) -> None:
    """The paper's budgets, figures and bound computed anew; simulated queues against its formula."""
    study_table_1(report, plot_path)
    study_simulation(report, num_queries)


if __name__ == "__main__":
    main()
