"""What a queue can bear: the plan against uniform budgets, roundings, solvers, simulations and times.

    python -m benchmarks.studies.queueing --seed 0 --plot_path queueing.png
    python -m benchmarks.studies.queueing --tasks types.json --arrival_rate 0.1 --alpha 30

Without a file the types are those of Table I of arXiv 2601.10274, and the figures are held against the paper's. A
million queries scatter by about 2 % at a load of 0.9, so more are simulated there.

The picture has accuracy against time over alpha, and the objective against one budget while the others are at the
optimum; a second one (`..._table_1`) has the paper's figures 3 and 4.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
import numpy as np

from benchmarks._lib.command import benchmark, plotted, size
from benchmarks._lib.drawing import beside, drawing
from benchmarks._lib.provenance import DATA
from benchmarks._lib.report import Report
from scaffolding_ext.controllers.budgets.files import TaskTypes
from scaffolding_ext.controllers.budgets.queueing.demand import Demand
from scaffolding_ext.controllers.budgets.queueing.grid import best_by_coordinates
from scaffolding_ext.controllers.budgets.queueing.model import Moments, kkt_residual, objective, pollaczek_khinchine
from scaffolding_ext.controllers.budgets.queueing.plan import solve
from scaffolding_ext.controllers.budgets.queueing.queues import Queue, simulate
from scaffolding_ext.controllers.budgets.queueing.rounding import best, coordinate_search, lower_bound, nearest
from scaffolding_ext.controllers.budgets.queueing.simulation import simulate_fifo
from scaffolding_ext.controllers.budgets.queueing.solvers import SOLVERS, constant_step, projected_gradient
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats, Mix, TaskType, UnstableLoadError
from scaffolding_ext.evaluation.calibrate.budget_report import plot_demand

MAX_TOKENS = 32768
UNIFORM = (0, 100, 500)
BATCH, SLOWDOWN = 16, 0.1
ENGINE_LOAD = 0.3  # before anybody thinks
AROUND = (0.0, 0.25, 0.5, 0.75, 1.25, 1.5, 2.0)  # times the single server's budget, or 100 tokens if that is less
LOADS = {0.3: 0.04, 0.6: 0.1, 0.9: 1.0}  # and the share of the queries that it takes
TABLE_1 = "configs:calibrations/queueing_table_1.yaml"
PRINTED = (0, 340.5, 0, 0, 345.0, 30.1)  # its optimum
PRINTED_OBJECTIVES = {0: 5.832, 100: 8.239, 500: 1.794}  # figure 3: of so many tokens for all
SLICED, LONGEST = 1, 1000  # figure 4: the budget of GSM8K, up to so many tokens
NUM_ROUNDINGS = 20_000


def study_plan(report: Report, tasks: list[TaskType], arrival_rate: float, alpha: float) -> None:
    """The plan, uniform budgets, roundings, and the solvers from the same start."""
    plan = solve(tasks, arrival_rate, alpha, MAX_TOKENS)
    mix = Mix.of(tasks, arrival_rate, alpha, MAX_TOKENS)
    for task, budget in zip(tasks, plan.budgets, strict=True):
        report.figure(f"budget of {task.name}", budget)
    report.figure("objective of the plan", plan.objective)
    report.bar("KKT residual", plan.kkt_residual, "<=", 1e-8)
    report.bar("lost by whole budgets", plan.rounding_loss, "<=", 1e-3)
    for tokens in UNIFORM:
        report.figure(
            f"objective of {tokens} tokens for all", float(objective(mix, np.full(len(tasks), float(tokens))))
        )
    even = np.arange(0.0, 4000)[:, None] * np.ones(len(tasks))
    report.bar("plan above the best budget for all", plan.objective - float(objective(mix, even).max()), ">=", 0)
    budgets = np.asarray(plan.budgets)
    for name, rounding in (("best, eq. 39", best), ("nearest, eq. 40", nearest), ("coordinates", coordinate_search)):
        lost = plan.objective - float(objective(mix, rounding(partial(objective, mix), budgets, MAX_TOKENS)))
        report.figure(f"lost by rounding, {name}", lost)
    report.figure("lost by rounding, at most, eq. 41", plan.objective - float(lower_bound(mix, budgets)))
    for name, solver in SOLVERS.items():
        report.figure(f"residual of {name}", kkt_residual(mix, solver(mix, np.zeros(len(tasks)))))
    report.closing.append(
        f"constant step of the gradient: {constant_step(mix) or 'none, the largest budgets are unstable'}"
    )
    shares = mix.pi * mix.c
    report.figure("contraction constant of the paper's condition, lower bound", float(shares.sum() / mix.c.min()))
    report.figure("contraction at the optimum, eq. 26", plan.contraction)
    report.figure("bend of the objective up to the optimum, eq. 32", plan.lipschitz)


def study_table_1(report: Report, plot_path: Path | None) -> None:
    """The paper's printed optimum, its figures 3 and 4, and the bound of eq. 41 under random roundings."""
    mix = Mix.of(TaskTypes.load(TABLE_1).tasks, 0.1, 30, MAX_TOKENS)
    optimum = np.array(solve(mix.tasks, 0.1, 30, MAX_TOKENS).budgets)
    report.bar("Table I: farthest from the printed optimum, tokens", float(np.abs(optimum - PRINTED).max()), "<=", 1.5)
    alike = {tokens: float(objective(mix, np.full(6, float(tokens)))) for tokens in PRINTED_OBJECTIVES}
    off = max(abs(alike[tokens] - printed) for tokens, printed in PRINTED_OBJECTIVES.items())
    report.bar("Table I, figure 3: farthest from the printed objectives", off, "<=", 0.001)
    slices = np.tile(optimum, (LONGEST + 1, 1))
    slices[:, SLICED] = np.arange(LONGEST + 1)
    values, bounds = objective(mix, slices), lower_bound(mix, slices)
    report.figure("Table I, figure 4: tokens of GSM8K with the largest objective", int(values.argmax()))
    for tokens in range(0, LONGEST + 1, 50):
        report.figure(f"Table I, figure 4: objective, {tokens} tokens of GSM8K", float(values[tokens]))
    plan = solve(mix.tasks, 0.1, 30, MAX_TOKENS)
    report.figure("Table I: contraction at the optimum, eq. 26", plan.contraction)
    stands = projected_gradient(mix, np.zeros(6), step=1 / plan.lipschitz)
    report.figure("Table I: residual of the paper's constant step after 20,000 steps", kkt_residual(mix, stands))
    report.figure("Table I: its budget of BBH", float(stands[4]))
    report.figure("Table I: bound of eq. 41 at the optimum", float(lower_bound(mix, optimum)))
    budgets = report.rng.uniform(0, 400, (NUM_ROUNDINGS, 6))
    rounded = np.floor(budgets) + report.rng.integers(0, 2, budgets.shape)
    broken = int((objective(mix, rounded) < lower_bound(mix, budgets)).sum())
    report.bar(f"Table I: random roundings below eq. 41, of {NUM_ROUNDINGS:,}", broken, "<=", 0)
    if plot_path is None:
        return
    with drawing(plot_path.with_stem(f"{plot_path.stem}_table_1"), 1, 2, figsize=(13, 4.5)) as (_, (bars, curves)):
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
        beside(curves)


def study_simulation(report: Report, num_queries: int) -> None:
    """Lindley's recursion against Pollaczek-Khinchine at three loads."""
    seconds, shares = np.array([0.3, 1.0, 4.0]), np.array([0.5, 0.35, 0.15])
    ends = np.cumsum(shares)[:-1]
    for load, part in LOADS.items():
        rate = load / float(seconds @ shares)
        formula = float(pollaczek_khinchine(rate, Moments(seconds @ shares, seconds**2 @ shares)))
        found = simulate_fifo(
            lambda rng, number: seconds[np.searchsorted(ends, rng.random(number))],
            rate,
            max(int(part * num_queries), 100_000),
            report.rng,
        )
        ratio = [value / formula for value in found.system_time]
        report.figure(f"simulated by formula, load {load}, {found.num_queries:,} queries", *ratio)
        if num_queries >= 20_000_000:
            report.bar(f"distance from the formula, load {load}", abs(ratio[0] - 1), "<=", 0.01)


def study_engine(report: Report, tasks: list[TaskType], alpha: float, num_queries: int) -> None:
    """How far the single server's optimum is from the best on a simulated engine that batches.

    The single server is as fast as the full engine. The search starts at its optimum, on a grid around it; every
    combination meets the same arrivals, and what was found is judged on others, beside the optimum of the formula for
    such an engine.
    """
    queue = Queue(BATCH, SLOWDOWN)
    shortest = sum(task.probability * task.t0 for task in tasks)
    rate = ENGINE_LOAD * queue.capacity / shortest
    fast = [replace(task, t0=task.t0 / queue.capacity, c=task.c / queue.capacity) for task in tasks]
    plan = solve(fast, rate, alpha, MAX_TOKENS)

    def worth(budgets: Sequence[int], seed: int) -> float:
        try:
            found = simulate(tasks, budgets, rate, queue, num_queries, np.random.default_rng(seed))
        except UnstableLoadError:
            return -np.inf
        right = sum(t.probability * (t.D - t.A * np.expm1(-t.b * n)) for t, n in zip(tasks, budgets, strict=True))
        return float(alpha * right - found.simulated.system_time.value)

    grid = [sorted({n, *(int(share * max(n, 100)) for share in AROUND)}) for n in plan.integer_budgets]
    place = best_by_coordinates(
        lambda at: worth([line[index] for line, index in zip(grid, at, strict=True)], report.seed),
        [len(line) for line in grid],
        [[line.index(tokens) for line, tokens in zip(grid, plan.integer_budgets, strict=True)]],
    )
    found = [line[index] for line, index in zip(grid, place, strict=True)]
    demand = Demand(tuple(tasks), rate, alpha, MAX_TOKENS, queue)
    by_formula = demand.best()
    for task, single, formula, engine in zip(tasks, plan.integer_budgets, by_formula, found, strict=True):
        report.figure(f"batch of {BATCH}, {task.name}: single server", single)
        report.figure(f"batch of {BATCH}, {task.name}: formula", formula)
        report.figure(f"batch of {BATCH}, {task.name}: engine", engine)
    seeds = range(report.seed + 1, report.seed + 11)
    for name, budgets in (("engine", found), ("formula", by_formula)):
        gains = [worth(budgets, seed) - worth(plan.integer_budgets, seed) for seed in seeds]
        half = 2.26 * float(np.std(gains, ddof=1)) / len(gains) ** 0.5  # Student's t, 9 degrees of freedom
        gain = float(np.mean(gains))
        told = f"batch of {BATCH}: objective gained over the single server's optimum, {name}"
        report.figure(told, gain, gain - half, gain + half)
    served = simulate(tasks, by_formula, rate, queue, 4 * num_queries, report.rng).simulated.system_time
    forecast = float(demand.forecast(by_formula).system_time)
    report.figure(f"batch of {BATCH}: simulated by formula", *(value / forecast for value in served))


def study_times(report: Report, repetitions: int) -> None:
    """Best of several runs: other work on the machine only adds."""
    rng = report.rng
    many = [
        TaskType(
            f"{n}",
            1e-3,
            rng.uniform(0.05, 0.6),
            10 ** rng.uniform(-4, -1.5),
            rng.uniform(0, 0.4),
            rng.uniform(0.1, 1),
            0.01,
        )
        for n in range(1000)
    ]

    def exponential(generator: np.random.Generator, number: int) -> Floats:
        return generator.standard_exponential(number)

    for name, work, bar in (
        ("ms to solve, 6 types", lambda: solve(TaskTypes.load(TABLE_1).tasks, 0.1, 30, MAX_TOKENS), 5),
        ("ms to solve, 1,000 types", lambda: solve(many, 0.5, 30, MAX_TOKENS), 100),
        ("ms to simulate a million queries", lambda: simulate_fifo(exponential, 0.5, 1_000_000, rng), 200),
    ):
        report.bar(name, min(_ms(work) for _ in range(repetitions)), "<=", bar)


def _ms(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - start)


@benchmark("studies.queueing --seed 0")
@click.option("--tasks", type=DATA, help="JSON file of types; Table I of the paper if left out.")
@click.option("--arrival_rate", default=0.1, show_default=True, help="Arrivals a second.")
@click.option("--alpha", default=30.0, show_default=True, help="Seconds that a right answer is worth.")
@size("--num_queries", 50_000_000, quick=200_000, help="Queries simulated at a load of 0.9.")
@size(
    "--num_engine_queries", 50_000, quick=1_000, help="Queries simulated for each combination on an engine.", least=1000
)
@size("--repetitions", 20, quick=3, help="Runs of which the quickest counts.")
@plotted
def main(
    report: Report,
    tasks: Path | None,
    arrival_rate: float,
    alpha: float,
    num_queries: int,
    num_engine_queries: int,
    repetitions: int,
    plot_path: Path | None,
) -> None:
    """Budgets for types of questions, against uniform ones; simulated queues against the formula; how long it takes."""
    types = TaskTypes.load(TABLE_1 if tasks is None else tasks).tasks
    study_plan(report, types, arrival_rate, alpha)
    study_table_1(report, plot_path)
    study_simulation(report, num_queries)
    study_engine(report, types, alpha, num_engine_queries)
    study_times(report, repetitions)
    if plot_path is not None:
        plot_path.parent.mkdir(parents=True, exist_ok=True)
        plot_demand(Demand(tuple(types), arrival_rate, alpha, MAX_TOKENS), plot_path)


if __name__ == "__main__":
    main()
