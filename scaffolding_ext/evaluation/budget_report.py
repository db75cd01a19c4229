"""Plans of budgets and fits as tables, notes and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from scaffolding_ext.errors import MissingDependencyError
from scaffolding_ext.evaluation.budget_sweep import Swept
from scaffolding_ext.maths.queueing.model import accuracies, objective, service_times
from scaffolding_ext.maths.queueing.plan import BudgetPlan, solve
from scaffolding_ext.maths.queueing.tasks import Mix
from scaffolding_ext.maths.statistics import Estimate

_NUM_ALPHAS = 30
_NUM_BUDGETS = 200


def plan_table(plan: BudgetPlan) -> Table:
    """A line a type: its budget, accuracy and service."""
    table = _table("type", "share %", "tokens", "whole", "correct %", "service s")
    mix = _mix(plan)
    whole = np.asarray(plan.integer_budgets, dtype=np.float64)
    right, seconds = accuracies(mix, whole), service_times(mix, whole)
    for k, task in enumerate(plan.tasks):
        figures = (100 * mix.pi[k], plan.budgets[k], plan.integer_budgets[k], 100 * right[k], seconds[k])
        table.add_row(
            task.name, *(f"{v:{form}}" for v, form in zip(figures, (".1f", ".1f", "d", ".1f", ".4g"), strict=True))
        )
    return table


def fit_table(swept: Swept) -> Table:
    """A line a kind of question: the fitted numbers with intervals, and the largest miss in points."""
    table = _table("kind", "share %", "A", "b", "D", "t0 s", "c s", "miss")
    for kind in swept.kinds:
        curve, line = kind.accuracy, kind.service
        shown = (f"{e.value:.3g} ({e.low:.3g}..{e.high:.3g})" for e in (curve.A, curve.b, curve.D, line.t0, line.c))
        table.add_row(kind.kind, f"{100 * kind.share:.1f}", *shown, f"{100 * curve.largest_miss:.1f}")
    return table


def fit_notes(swept: Swept) -> list[dict[str, Any]]:
    """What a file of types keeps of its fits: intervals, misses, and what was measured."""
    return [
        {
            "kind": kind.kind,
            **{name: _ends(getattr(kind.accuracy, name)) for name in ("A", "b", "D")},
            **{name: _ends(getattr(kind.service, name)) for name in ("t0", "c")},
            "largest_miss": kind.accuracy.largest_miss,
            "p_value": kind.accuracy.p_value,
            "budgets": kind.budgets,
            "num_correct": kind.num_correct,
            "num_answers": kind.num_answers,
            "monotone": kind.measured().accuracies,
            "mean_seconds": kind.mean_seconds,
            "spread_seconds": kind.spread_seconds,
            "warnings": kind.warnings,
        }
        for kind in swept.kinds
    ]


def plot_plan(plan: BudgetPlan, path: Path) -> None:
    """Draw accuracy against system time over alpha, and the objective against each budget, the others at the optimum.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    figure = _figure((11, 4.5))
    frontier, slices = figure.subplots(1, 2)
    alphas = max(plan.alpha, 1e-3) * np.geomspace(0.01, 100, _NUM_ALPHAS)
    plans = [solve(plan.tasks, plan.arrival_rate, float(alpha), plan.max_tokens) for alpha in alphas]
    frontier.plot([p.system_time for p in plans], [100 * p.accuracy for p in plans], ".-")
    frontier.plot(plan.system_time, 100 * plan.accuracy, "k*", markersize=12, label=f"alpha = {plan.alpha:g}")
    frontier.set(xlabel="mean seconds in the system", ylabel="correct in %", title="accuracy against time, over alpha")
    frontier.set_xscale("log")
    frontier.legend()
    mix, best = _mix(plan), np.asarray(plan.budgets)
    top = min(plan.max_tokens, max(2 * float(best.max()), 10.0))
    for k, task in enumerate(plan.tasks):
        tried = np.tile(best, (_NUM_BUDGETS, 1))
        tried[:, k] = np.linspace(0, top, _NUM_BUDGETS)
        values = objective(mix, tried)
        values[~np.isfinite(values)] = np.nan
        slices.plot(tried[:, k], values, label=task.name)
    slices.set(xlabel="tokens of one type, the others at the optimum", ylabel="objective", title="the objective")
    low = float(objective(mix, np.zeros(len(best))))
    slices.set_ylim(low - 0.5 * abs(plan.objective - low) - 0.1, plan.objective + 0.1 * abs(plan.objective - low) + 0.1)
    slices.legend(fontsize="x-small")
    _save(figure, (frontier, slices), path)


def plot_fits(swept: Swept, path: Path) -> None:
    """Draw what was measured and what was fitted: accuracy and seconds against the budget.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    figure = _figure((11, 4.5))
    right, times = figure.subplots(1, 2)
    for index, kind in enumerate(swept.kinds):
        budgets, colour = np.asarray(kind.budgets, dtype=np.float64), f"C{index % 10}"
        grid = np.linspace(0, budgets.max(), _NUM_BUDGETS)
        shares = 100 * np.asarray(kind.num_correct) / np.asarray(kind.num_answers)
        right.plot(budgets, shares, "o", color=colour, label=kind.kind)
        right.plot(grid, 100 * kind.accuracy.at(grid), "-", color=colour)
        right.plot(budgets, 100 * np.asarray(kind.measured().accuracies), ":", color=colour)
        times.errorbar(budgets, kind.mean_seconds, kind.spread_seconds, fmt="o", color=colour, label=kind.kind)
        times.plot(grid, kind.service.t0.value + kind.service.c.value * grid, "-", color=colour)
    right.set(xlabel="tokens", ylabel="correct in %", title="measured, fitted (line), only rising (dots)")
    times.set(xlabel="tokens", ylabel="seconds", title="measured with standard deviations, and fitted")
    right.legend(fontsize="x-small")
    _save(figure, (right, times), path)


def _mix(plan: BudgetPlan) -> Mix:
    return Mix.of(plan.tasks, plan.arrival_rate, plan.alpha, plan.max_tokens)


def _ends(estimate: Estimate) -> dict[str, float]:
    return estimate._asdict()


def _table(first: str, *columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _figure(size: tuple[float, float]) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("matplotlib", "plots") from error
    return Figure(figsize=size, layout="constrained")


def _save(figure: Any, axes: Sequence[Any], path: Path) -> None:
    for each in axes:
        each.grid(alpha=0.3)
    figure.savefig(path, dpi=100)
