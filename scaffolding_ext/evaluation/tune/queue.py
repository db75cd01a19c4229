"""Choose a thinking budget for each type of question, for a queue.

Reference: Ozbas and Bastopcu, arXiv 2601.10274.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from scaffolding_ext.controllers.budgets.files import PlannedBudgets, TaskTypes
from scaffolding_ext.controllers.budgets.queueing.demand import Demand
from scaffolding_ext.controllers.budgets.queueing.queues import Queue
from scaffolding_ext.documents import fingerprint
from scaffolding_ext.evaluation.tune.stack_file import budgets_stack_of
from scaffolding_ext.stack.config import StackConfig

MAX_TOKENS = 32768  # largest budget


class BudgetsByType(NamedTuple):
    """A budget of one chain for each type of question."""

    plan: PlannedBudgets
    types: TaskTypes
    stack: StackConfig

    def document(self) -> dict[str, Any]:
        found = self.plan.demand.forecast(tuple(self.plan.budgets.values()))
        return {
            "budgets": self.plan.budgets,
            **{name: float(value) for name, value in found._asdict().items()},
            "for_all": {"budget": self.plan.mixture_budget, **self.plan.uniform_forecast},
            "types": self.types.model_dump(mode="json", include={"tasks", "fits"}),
        }

    def lines(self) -> Iterator[str]:
        measured = {fit.kind: (min(fit.budgets), max(fit.budgets)) for fit in self.types.fits}
        for each in self.plan.demand.types:
            tokens = self.plan.budgets[each.name]
            given, (low, high) = each.given(tokens), measured.get(each.name, (tokens, tokens))
            yield f"{each.name:20} {tokens} tokens, {float(given.accuracy):.1%} right in {float(given.seconds):.4g} s"
            if not low <= tokens <= high:
                yield f"{'':20} outside the measured {low} to {high} tokens: measure it, or take --measured"
        for name, forecast in (
            ("plan", self.plan.forecast),
            (f"{self.plan.mixture_budget} for all", self.plan.uniform_forecast),
        ):
            time = forecast["system_time"]
            yield (
                f"{name:12} objective {forecast['objective'] or float('-inf'):.4f}, {forecast['accuracy']:.1%} right, "
                f"{float('inf') if time is None else time:.4g} s at load {forecast['load']:.3f}"
            )
        for fit in self.types.fits:
            own: Any = fit
            fitted = ", ".join(f"{name} {_interval(getattr(own, name))}" for name in ("A", "b", "D", "t0", "c"))
            yield f"{fit.kind}: {fitted}; misses at most {100 * own.largest_miss:.1f} points"


def planned_budgets(
    types: TaskTypes,
    arrival_rate: float,
    alpha: float,
    queue: Queue,
    measured: bool,
    file: Path | None,
    base: StackConfig | None,
) -> BudgetsByType:
    """Choose the best budgets of types under a load.

    With `measured` they are among the budgets of the runs. A `file` is the origin of the types, a `base` the stack
    whose workers are kept.

    Reference: arXiv 2601.10274, Table I, if curves and a single server are given.
    """
    own = types.measured(MAX_TOKENS) if measured else types.tasks
    demand = Demand(tuple(own), arrival_rate, alpha, MAX_TOKENS, queue)
    origin = {} if file is None else {"data": file.name, "fingerprint": fingerprint(file)}
    plan = PlannedBudgets.of(demand, model=types.model, **origin)
    return BudgetsByType(plan, types, budgets_stack_of(plan, base))


def _interval(estimate: Mapping[str, float]) -> str:
    return f"{estimate['value']:.3g} ({estimate['low']:.3g} to {estimate['high']:.3g})"
