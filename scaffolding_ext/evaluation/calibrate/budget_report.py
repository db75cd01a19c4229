"""Plans of budgets and fits as tables, notes and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from scaffolding_ext.controllers.budgets.queueing.demand import Demand, Forecast
from scaffolding_ext.errors import MissingDependencyError
from scaffolding_ext.evaluation.calibrate.budget_sweep import Swept
from scaffolding_ext.evaluation.tables import Table
from scaffolding_ext.stats.intervals import Estimate

_NUM_ALPHAS = 30
_NUM_BUDGETS = 200
_FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)  # of alpha, in the table


def budgets_table(demand: Demand, budgets: Sequence[int], optimum: Sequence[float] = ()) -> Table:
    """A line a type: its budget, accuracy and service; and the optimum before rounding, if it is given."""
    table = Table("type", "share %", "tokens", "correct %", "service s", *(["optimum"] if optimum else []))
    for k, (each, tokens) in enumerate(zip(demand.types, budgets, strict=True)):
        found = each.given(tokens)
        row = [f"{100 * each.probability:.1f}", f"{tokens}", f"{100 * found.accuracy:.1f}", f"{found.seconds:.4g}"]
        table.add_row(each.name, *row, *([f"{optimum[k]:.1f}"] if optimum else []))
    return table


def frontier_table(demand: Demand) -> Table:
    """A line an alpha: the best budgets and the best single budget for all types, with their results."""
    table = Table("alpha s", *demand.names, "correct %", "system s", "alike", "correct %", "system s")
    for alpha in (demand.alpha * factor for factor in _FACTORS):
        at = replace(demand, alpha=alpha)
        budgets, alike = at.best(), at.best_uniform()
        row = [f"{alpha:.4g}", *map(str, budgets), *_shown(at.forecast(budgets)), str(alike)]
        table.add_row(*row, *_shown(at.forecast([alike] * len(budgets))))
    return table


def _shown(forecast: Forecast) -> tuple[str, str]:
    return f"{100 * forecast.accuracy:.1f}", f"{forecast.system_time:.4g}"


def fit_table(swept: Swept) -> Table:
    """A line a kind of question: the fitted numbers with intervals, and the largest miss in points."""
    table = Table("kind", "share %", "A", "b", "D", "t0 s", "c s", "miss")
    for kind in swept.kinds:
        curve, line = kind.accuracy, kind.service
        shown = (f"{e.value:.3g} ({e.low:.3g}..{e.high:.3g})" for e in (curve.A, curve.b, curve.D, line.t0, line.c))
        table.add_row(kind.kind, f"{100 * kind.share:.1f}", *shown, f"{100 * curve.largest_miss:.1f}")
    return table


def fit_notes(swept: Swept) -> list[dict[str, Any]]:
    """The notes on fits in a file of types: intervals, misses, and the measured points."""
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


def plot_demand(demand: Demand, path: Path) -> None:
    """Draw accuracy against system time over alpha, and the objective against each budget, the others at the optimum.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    figure = _figure((11, 4.5))
    frontier, slices = figure.subplots(1, 2)
    alphas = max(demand.alpha, 1e-3) * np.geomspace(0.01, 100, _NUM_ALPHAS)
    demands = [replace(demand, alpha=float(alpha)) for alpha in alphas]
    kinds = len(demand.types)
    for label, found in (
        ("a budget a type", [each.forecast(each.best()) for each in demands]),
        ("one budget for all", [each.forecast([each.best_uniform()] * kinds) for each in demands]),
    ):
        frontier.plot([each.system_time for each in found], [100 * each.accuracy for each in found], ".-", label=label)
    best = np.asarray(demand.best(), dtype=np.float64)
    plan, nothing = demand.forecast(best), demand.forecast(np.zeros(kinds))
    star = f"alpha = {demand.alpha:g}"
    frontier.plot(plan.system_time, 100 * plan.accuracy, "k*", markersize=12, label=star)
    frontier.set(xlabel="mean seconds in the system", ylabel="correct in %", title="accuracy against time, over alpha")
    frontier.set_xscale("log")
    frontier.legend()
    top = min(float(demand.max_tokens), max(2 * float(best.max()), 10.0))
    for k, name in enumerate(demand.names):
        tried = np.tile(best, (_NUM_BUDGETS, 1))
        tried[:, k] = np.linspace(0, top, _NUM_BUDGETS)
        values = demand.forecast(tried).objective
        values[~np.isfinite(values)] = np.nan
        slices.plot(tried[:, k], values, label=name)
    slices.set(xlabel="tokens of one type, the others at the optimum", ylabel="objective", title="the objective")
    high, low = float(plan.objective), float(nothing.objective if np.isfinite(nothing.objective) else plan.objective)
    slices.set_ylim(low - 0.5 * abs(high - low) - 0.1, high + 0.1 * abs(high - low) + 0.1)
    slices.legend(fontsize="x-small")
    _save(figure, (frontier, slices), path)


def plot_fits(swept: Swept, path: Path) -> None:
    """Draw measured points and fits: accuracy and seconds against the budget.

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


def _ends(estimate: Estimate) -> dict[str, float]:
    return estimate._asdict()


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
