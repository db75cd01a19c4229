"""The plan: the budgets that best balance accuracy and waiting, with bounds on their error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.budgets.queueing.model import (
    accuracies,
    kkt_residual,
    moments,
    objective,
    objective_of_steps,
    pollaczek_khinchine,
)
from scaffolding_ext.controllers.budgets.queueing.rounding import ROUNDINGS, lower_bound
from scaffolding_ext.controllers.budgets.queueing.solvers import SOLVERS, contraction, lipschitz, projected_gradient
from scaffolding_ext.controllers.budgets.queueing.tasks import Mix, TaskType
from scaffolding_ext.errors import ConfigError

MAX_RESIDUAL = 1e-8


@dataclass(frozen=True)
class BudgetPlan:
    """Budgets for types of questions, and their results by the model.

    Attributes:
        alpha: Value of an accuracy of 1, in seconds.
        objective: alpha times accuracy minus mean seconds in the system, at `budgets`.
        rounding_bound: No rounding of `budgets` has a lower objective (eq. 41); None if rounding up may not be served.
        kkt_residual: Distance of `budgets` from the optimum, at most 1e-8.
        contraction: Below 1, the paper's undamped fixed point contracts near `budgets` (`solvers.contraction`, eq. 26).
        lipschitz: Bound on the curvature of the objective from 0 to `budgets` (`solvers.lipschitz`, eq. 32); the
            paper's constant step is 1 / lipschitz.
        system_time: Mean seconds of waiting and service, at `integer_budgets`.
        load: Share of time in which the server is busy, at `integer_budgets`.
    """

    tasks: tuple[TaskType, ...]
    arrival_rate: float
    alpha: float
    max_tokens: float
    budgets: tuple[float, ...]
    integer_budgets: tuple[int, ...]
    objective: float
    integer_objective: float
    rounding_bound: float | None
    kkt_residual: float
    contraction: float
    lipschitz: float
    accuracy: float
    system_time: float
    load: float


def solve(
    tasks: Sequence[TaskType],
    arrival_rate: float,
    alpha: float,
    max_tokens: float,
    *,
    solver: str = "fixed_point",
    rounding: str = "best",
    step: float | None = None,
) -> BudgetPlan:
    """Find the budgets that maximize alpha times accuracy minus the mean time in the queue.

    Args:
        alpha: Value of an accuracy of 1, in seconds, at least 0.
        solver: One of the paper's two: `"fixed_point"` (eq. 24) or `"projected_gradient"` (eq. 38).
        rounding: `"best"` of all roundings up and down (eq. 39), or the `"nearest"` whole budgets (eq. 40).
        step: Constant step of the projected gradient, such as the paper's 1 / lipschitz; None adapts each step.
    Reference: arXiv 2601.10274.
    """
    find, whole_of = SOLVERS[require.one_of("solver", solver, SOLVERS)], require.one_of("rounding", rounding, ROUNDINGS)
    mix = Mix.of(tasks, arrival_rate, alpha, max_tokens)
    if step is not None:
        if solver != "projected_gradient":
            raise ConfigError(f"is {step:g}, but {solver!r} takes none: set solver to 'projected_gradient'", "step")
        find = partial(projected_gradient, step=require.number("step", step, above=0))
    budgets = find(mix, np.zeros(len(mix.pi)))
    residual = kkt_residual(mix, budgets)
    if residual > MAX_RESIDUAL:
        others = ", ".join(name for name in SOLVERS if name != solver)
        raise ConfigError(
            f"{solver!r} ends at a KKT residual of {residual:.2g}, above {MAX_RESIDUAL:g}; use {others}"
            f"{'' if step is None else ', or another step'}, or check b, t0 and c: the numbers of the types may be "
            "too far apart",
            "solver",
        )
    whole = ROUNDINGS[whole_of](partial(objective, mix), budgets, max_tokens, partial(objective_of_steps, mix))
    of, bound = moments(mix, whole), float(lower_bound(mix, budgets))
    return BudgetPlan(
        mix.tasks,
        arrival_rate,
        alpha,
        max_tokens,
        tuple(budgets.tolist()),
        tuple(int(budget) for budget in whole),
        float(objective(mix, budgets)),
        float(objective(mix, whole)),
        bound if np.isfinite(bound) else None,
        residual,
        contraction(mix, budgets),
        lipschitz(mix, budgets),
        float(accuracies(mix, whole) @ mix.pi),
        float(pollaczek_khinchine(arrival_rate, of)),
        arrival_rate * float(of.first),
    )
