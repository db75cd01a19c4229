"""The plan: the budgets that balance accuracy and waiting best, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from scaffolding_ext.controllers.budgets.queueing.fixed_point import fixed_point
from scaffolding_ext.controllers.budgets.queueing.model import (
    accuracies,
    kkt_residual,
    moments,
    objective,
    pollaczek_khinchine,
)
from scaffolding_ext.controllers.budgets.queueing.projected_gradient import projected_gradient
from scaffolding_ext.controllers.budgets.queueing.projected_newton import projected_newton
from scaffolding_ext.controllers.budgets.queueing.rounding import rounded
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats, Mix, TaskType

MAX_RESIDUAL = 1e-8
SOLVERS: tuple[Callable[[Mix, Floats], Floats], ...] = (
    partial(fixed_point, max_steps=6),  # where it contracts well it needs no more
    projected_newton,
    projected_gradient,
)


@dataclass(frozen=True)
class BudgetPlan:
    """Budgets for types of questions, and what they give by the model.

    Attributes:
        tasks: The types.
        arrival_rate: Arrivals a second, of all types.
        alpha: Seconds that an accuracy of 1 is worth.
        max_tokens: No budget is larger.
        budgets: Tokens of each type, real numbers.
        integer_budgets: Tokens of each type, whole.
        objective: alpha times accuracy less mean seconds in the system, at `budgets`.
        integer_objective: The same at `integer_budgets`.
        kkt_residual: How far `budgets` are from the optimum, at most 1e-8.
        accuracy: Mean over arrivals, at `integer_budgets`.
        system_time: Mean seconds of waiting and service, at `integer_budgets`.
        load: Share of the time in which the server serves, at `integer_budgets`.
    """

    tasks: tuple[TaskType, ...]
    arrival_rate: float
    alpha: float
    max_tokens: float
    budgets: tuple[float, ...]
    integer_budgets: tuple[int, ...]
    objective: float
    integer_objective: float
    kkt_residual: float
    accuracy: float
    system_time: float
    load: float

    @property
    def rounding_loss(self) -> float:
        """What whole budgets lose of the objective."""
        return self.objective - self.integer_objective


def solve(tasks: Sequence[TaskType], arrival_rate: float, alpha: float, max_tokens: float) -> BudgetPlan:
    """The budgets that maximise alpha times accuracy less the mean time in the queue.

    The fixed point goes first; where it ends too early, Newton and then the gradient go on from there.

    Args:
        tasks: The types; their probabilities sum to 1.
        arrival_rate: Arrivals a second, of all types, above 0.
        alpha: Seconds that an accuracy of 1 is worth, at least 0.
        max_tokens: No budget is larger.

    Raises:
        ConfigError: A number is outside its range, names repeat, or probabilities do not sum to 1.
        UnstableLoadError: Not even budgets of 0 can be served; it has the largest rate that can.
        ArithmeticError: No solver came to the optimum; the message has the residual.

    Reference: arXiv 2601.10274.
    """
    mix = Mix.of(tasks, arrival_rate, alpha, max_tokens)
    budgets = np.zeros(len(mix.pi))
    for solver in SOLVERS:
        budgets = solver(mix, budgets)
        residual = kkt_residual(mix, budgets)
        if residual <= MAX_RESIDUAL:
            break
    else:
        raise ArithmeticError(
            f"the KKT residual is {residual:.2g} after every solver, above {MAX_RESIDUAL:g}; the numbers of the types "
            "may be too far apart: look at b, t0 and c"
        )
    whole = rounded(mix, budgets)
    of = moments(mix, whole)
    return BudgetPlan(
        mix.tasks,
        arrival_rate,
        alpha,
        max_tokens,
        tuple(budgets.tolist()),
        tuple(int(budget) for budget in whole),
        float(objective(mix, budgets)),
        float(objective(mix, whole)),
        residual,
        float(accuracies(mix, whole) @ mix.pi),
        float(pollaczek_khinchine(arrival_rate, of)),
        arrival_rate * float(of.first),
    )
