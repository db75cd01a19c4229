"""Plans of budgets and fits as tables, notes and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from scaffolding_ext.controllers.budgets.queueing.demand import Demand, Forecast
from scaffolding_ext.evaluation.calibrate.budget_sweep import KindSweep, Swept
from scaffolding_ext.evaluation.drawing import beside, coloured, drawing, points
from scaffolding_ext.evaluation.tables import Table, between
from scaffolding_ext.stats.intervals import Estimate, wilson_interval
from scaffolding_ext.stats.resampling import critical_value

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
        shown = (f"{e.value:.3g}{between(e.low, e.high, '.3g')}" for e in (curve.A, curve.b, curve.D, line.t0, line.c))
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
    alphas = max(demand.alpha, 1e-3) * np.geomspace(0.01, 100, _NUM_ALPHAS)
    demands = [replace(demand, alpha=float(alpha)) for alpha in alphas]
    kinds = len(demand.types)
    best = np.asarray(demand.best(), dtype=np.float64)
    plan = demand.forecast(best)
    with drawing(path, 1, 2, figsize=(14, 4.5)) as (_, (frontier, slices)):
        for label, found in (
            ("a budget a type", [each.forecast(each.best()) for each in demands]),
            ("one budget for all", [each.forecast([each.best_uniform()] * kinds) for each in demands]),
        ):
            times, rights = [each.system_time for each in found], [100 * each.accuracy for each in found]
            frontier.plot(times, rights, ".-", label=label)  # dots: of measured budgets there are only a few plans
        frontier.plot(plan.system_time, 100 * plan.accuracy, "k*", ms=11, label=f"the plan, alpha = {demand.alpha:g}")
        frontier.set(xlabel="mean seconds in the system", ylabel="correct in %", xscale="log")
        frontier.set_title(
            "A budget a type pays where its line lies above\none budget for all (by formula: no intervals)"
        )
        beside(frontier)
        top = min(float(demand.max_tokens), max(2 * float(best.max()), 10.0))
        for k, name in enumerate(demand.names):
            tried = np.tile(best, (_NUM_BUDGETS, 1))
            tried[:, k] = np.linspace(0, top, _NUM_BUDGETS)
            shape = coloured(k)
            slices.plot(tried[:, k], _near(demand.forecast(tried).objective, demand, plan), label=name, **_line(k))
            slices.plot(best[k], plan.objective, shape.get("fmt", "o"), color=shape["color"], ms=5, clip_on=False)
        slices.set(xlabel="tokens of one type, the others at the optimum", ylabel="objective")
        slices.set_title("Each line must be highest at its point, the plan's budget\n(by formula: no intervals)")
        beside(slices)


def _near(values: Any, demand: Demand, plan: Forecast) -> Any:
    """Values of the objective; NaN where they are so far below the plan's that they would flatten the picture."""
    high, nothing = float(plan.objective), float(demand.forecast(np.zeros(len(demand.types))).objective)
    low = nothing if np.isfinite(nothing) else high
    least = low - 0.5 * abs(high - low) - 0.1 * abs(high)
    return np.where(np.isfinite(values) & (values >= least), values, np.nan)


def plot_fits(swept: Swept, path: Path) -> None:
    """Draw measured points with 95 % intervals, and fits: accuracy and seconds against the budget.

    Answers count as independent of each other; intervals of shares are Wilson's, those of seconds the normal
    distribution's.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    with drawing(path, 1, 2, figsize=(14, 4.5)) as (_, (right, times)):
        for index, kind in enumerate(swept.kinds):
            budgets, shape = (
                np.asarray(kind.budgets, dtype=np.float64),
                {"fmt": "o", "clip_on": False, **coloured(index)},
            )
            grid = np.linspace(0, budgets.max(), _NUM_BUDGETS)
            line = _line(index)
            points(right, kind.budgets, _shares(kind), kind.kind, **shape)
            right.plot(grid, 100 * kind.accuracy.at(grid), **line)
            right.plot(budgets, 100 * np.asarray(kind.measured().accuracies), color=line["color"], linestyle=":", lw=1)
            timed = _seconds(kind)
            points(times, list(timed), list(timed.values()), kind.kind, **shape)
            times.plot(grid, kind.service.t0.value + kind.service.c.value * grid, **line)
        right.set(xlabel="tokens", ylabel="correct in %")
        right.set_title(
            "A fit holds where its line passes through the intervals;\ndots: the measured accuracy, if it may only rise"
        )
        times.set(xlabel="tokens", ylabel="mean seconds of an answer")
        times.set_title("Seconds grow as the plan takes for granted\nwhere the line passes through the intervals")
        beside(times)


def _line(index: int) -> dict[str, Any]:
    """Colour and dashes of a line by its number."""
    shape = coloured(index)
    return {"color": shape["color"], "linestyle": "--" if "fmt" in shape else "-", "lw": 1.2}


def _shares(kind: KindSweep) -> list[Estimate]:
    """Right answers at each budget in percent."""
    counts = zip(kind.num_correct, kind.num_answers, strict=True)
    return [Estimate(100 * k / n, *(100 * end for end in wilson_interval(k, n))) for k, n in counts]


def _seconds(kind: KindSweep) -> dict[int, Estimate]:
    """Mean seconds at each budget that was timed; the mean of one answer has no interval."""
    found = {}
    columns = zip(kind.budgets, kind.mean_seconds, kind.spread_seconds, kind.num_timed, strict=True)
    for budget, mean, spread, number in columns:
        half = critical_value(0.95) * spread / (number - 1) ** 0.5 if number > 1 else 0.0
        if number:
            found[budget] = Estimate(mean, mean - half, mean + half)
    return found


def _ends(estimate: Estimate) -> dict[str, float]:
    return estimate._asdict()
