"""Budgets out of measured ones, where accuracy may have any shape."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from scaffolding_ext.controllers.budgets.queueing import grid as grids
from scaffolding_ext.controllers.budgets.queueing.grid import MeasuredType, solve_on_grid
from scaffolding_ext.controllers.budgets.queueing.plan import solve
from scaffolding_ext.controllers.budgets.queueing.tasks import TaskType, UnstableLoadError
from scaffolding_ext.errors import ConfigError

S_SHAPED = MeasuredType("s", 0.6, (0, 64, 96, 128, 160), (0.02, 0.16, 0.53, 0.84, 0.91), (1.0, 1.6, 1.9, 2.2, 2.5))
FLAT = MeasuredType("flat", 0.4, (0, 100, 200), (0.5, 0.55, 0.56), (0.5, 1.5, 2.5), (0.1, 0.3, 0.5))


def worth(types: list[MeasuredType], place: tuple[int, ...], rate: float, alpha: float) -> float:
    first = sum(t.probability * t.seconds[at] for t, at in zip(types, place, strict=True))
    second = sum(t.probability * t.second_moments[at] for t, at in zip(types, place, strict=True))
    if rate * first >= 1:
        return -np.inf
    gain = sum(t.probability * t.accuracies[at] for t, at in zip(types, place, strict=True))
    return float(alpha * gain - first - rate * second / (2 * (1 - rate * first)))


@pytest.mark.parametrize("rate", [0.1, 0.4, 0.7])
def test_every_combination_is_compared(rate: float) -> None:
    types = [S_SHAPED, FLAT]
    plan = solve_on_grid(types, rate, 10)
    places = itertools.product(*(range(len(each.budgets)) for each in types))
    best = max(places, key=lambda place: worth(types, place, rate, 10))
    assert plan.is_global
    assert plan.budgets == tuple(each.budgets[at] for each, at in zip(types, best, strict=True))
    assert plan.objective == pytest.approx(worth(types, best, rate, 10))


def test_a_step_that_a_concave_solver_would_not_take() -> None:
    plan = solve_on_grid([MeasuredType("s", 1.0, *vars_of(S_SHAPED))], 0.1, 3)
    assert plan.budgets == (128,)  # the first 64 tokens lose


def vars_of(each: MeasuredType) -> tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]:
    return each.budgets, each.accuracies, each.seconds


def test_agrees_with_the_concave_solver_where_accuracy_is_concave() -> None:
    tasks = [TaskType("a", 0.7, 0.6, 0.02, 0.2, 0.5, 0.01), TaskType("b", 0.3, 0.3, 0.01, 0.5, 0.3, 0.02)]
    budgets = tuple(range(300))
    measured = [
        MeasuredType(
            t.name,
            t.probability,
            budgets,
            tuple(t.A * (1 - np.exp(-t.b * n)) + t.D for n in budgets),
            tuple(t.t0 + t.c * n for n in budgets),
        )
        for t in tasks
    ]
    plan, on_grid = solve(tasks, 0.5, 20, 299), solve_on_grid(measured, 0.5, 20)
    assert on_grid.budgets == plan.integer_budgets
    assert on_grid.objective == pytest.approx(plan.integer_objective)


def test_more_combinations_than_can_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    types = [MeasuredType(f"{n}", 0.125, *vars_of(S_SHAPED if n % 2 else FLAT)) for n in range(8)]
    exact = solve_on_grid(types, 0.4, 8)
    monkeypatch.setattr(grids, "MAX_COMBINATIONS", 10)
    searched = solve_on_grid(types, 0.4, 8)
    assert exact.is_global
    assert not searched.is_global
    assert searched.objective == pytest.approx(exact.objective, rel=0.01)
    assert searched.objective <= exact.objective + 1e-12


def test_budgets_that_others_beat_are_left_out_before_combinations_are_counted() -> None:
    """A plan that is made anew while requests wait must not compare millions of combinations that cannot be best."""
    good, num = ((0.2, 0.6, 0.8), (1.0, 2.0, 3.0)), 20  # three budgets, and worse ones that take longer
    accuracies = good[0] + tuple(0.1 / place for place in range(1, num - 2))
    seconds = good[1] + tuple(3.0 + place for place in range(1, num - 2))
    types = [MeasuredType(f"{n}", 1 / 6, tuple(range(num)), accuracies, seconds) for n in range(6)]
    plan = solve_on_grid(types, 0.1, 30)
    assert plan.is_global
    few = [MeasuredType(f"{n}", 1 / 6, (0, 1, 2), *good) for n in range(6)]
    assert (plan.budgets, plan.objective) == (
        solve_on_grid(few, 0.1, 30).budgets,
        solve_on_grid(few, 0.1, 30).objective,
    )


def test_what_cannot_be_measured_or_served() -> None:
    with pytest.raises(ConfigError, match="increasing budgets"):
        MeasuredType("a", 1.0, (64, 32), (0.1, 0.2), (1, 2))
    with pytest.raises(ConfigError, match="increasing budgets"):
        MeasuredType("a", 1.0, (32, 64), (0.1,), (1, 2))
    with pytest.raises(UnstableLoadError) as caught:
        solve_on_grid([FLAT], 5.0, 10)
    assert caught.value.largest_stable_rate == pytest.approx(1 / 0.2)
