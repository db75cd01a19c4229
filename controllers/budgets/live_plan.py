"""A plan of budgets in use: it watches how questions arrive, and is made anew where they arrive otherwise."""

from __future__ import annotations

from typing import Any

from scaffolding_ext.controllers.budgets.plan_file import PlannedBudgets
from scaffolding_ext.controllers.budgets.queueing.arrivals import ArrivalWindow, DriftBounds


class LivePlan:
    """The budgets of a stack, which all its requests share.

    A new plan takes over the observed rate where that has drifted, and the observed mix where that has; what has not
    stays as it was planned.

    Args:
        plan: To begin with.
        bounds: What counts as a drift; None keeps the plan for ever.

    Attributes:
        plan: The present one.
    """

    def __init__(self, plan: PlannedBudgets, bounds: DriftBounds | None) -> None:
        self.plan = plan
        self._window = None if bounds is None else ArrivalWindow(bounds)

    def arrived(self, seconds: float, name: str | None) -> dict[str, Any] | None:
        """Take note of an arrival.

        Args:
            seconds: When it came, on any clock.
            name: Its type, if it is known.

        Returns:
            What the plan was made anew from, for a trace; None where it stays.
        """
        if self._window is None:
            return None
        rate, shares = self.plan.demand.arrival_rate, self.plan.demand.shares
        found = self._window.add(seconds, name, rate, shares)
        if found is None or not found.drifted:
            return None
        self.plan = self.plan.replanned(
            found.rate.value if found.rate_drifted else rate, found.shares if found.mix_drifted else shares
        )
        return {
            "arrival_rate": found.rate._asdict(),
            "planned_rate": rate,
            "rate_drifted": found.rate_drifted,
            "shares": found.shares,
            "planned_shares": shares,
            "mix_drifted": found.mix_drifted,
            "budgets": dict(self.plan.budgets),
        }
