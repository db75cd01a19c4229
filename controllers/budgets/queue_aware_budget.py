"""Queue-aware budgets: each question thinks for as long as its type is worth while others wait."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scaffolding_ext import require
from scaffolding_ext.controllers.base import BaseController, honoured_by
from scaffolding_ext.controllers.budgets.budget_forcing import BudgetForcingController
from scaffolding_ext.controllers.budgets.files import PlannedBudgets
from scaffolding_ext.controllers.budgets.queueing.arrivals import ArrivalWindow, DriftBounds
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask, Worker
from scaffolding_ext.protocol.worker import model_of
from scaffolding_ext.protocol.worker_tags import WorkerTag, worker_for
from scaffolding_ext.registry import import_target
from scaffolding_ext.request.figures import Ratio
from scaffolding_ext.request.program import current_program, publish_figures, record

Classifier = Callable[[str], str | None]
_log = logging.getLogger(__name__)


class QueueAwareBudgetController(BaseController):
    """Gives each request the budget of its type in a plan, and plans anew where questions arrive otherwise.

    A request's type is its `task_type`, which `eval` takes from the dataset's `kind`. Without one the classifier names
    it. A request of no planned type gets the best single budget for all types; the trace says so each time, and the log
    once. Each `run` is an arrival, at the time when its request was submitted.

    Args:
        plan: A plan, or its file: what `scaffolding-ext budget plan` writes.
        classifier: A function, or `package.module:function`. It is given the prompt as the model reads it, and returns
            the name of the type, or None.
        generation_controller: Keeps the budget; it must honour `thinking_budget`. None takes budget forcing.
        drift: What counts as a drift: `rate`, `mix`, `window` and `level` of `DriftBounds`; None keeps the plan.

    Raises:
        ConfigError: The plan cannot be read, or an argument cannot be used.

    Reference: arXiv 2601.10274; planning anew is ours.
    """

    def __init__(
        self,
        plan: str | Path | PlannedBudgets,
        classifier: str | Classifier | None = None,
        generation_controller: Controller | None = None,
        *,
        drift: dict[str, float] | None = None,
    ) -> None:
        super().__init__()
        with require.under("plan"):
            loaded = plan if isinstance(plan, PlannedBudgets) else PlannedBudgets.load(plan)
        with require.under("classifier"):
            self.classifier = import_target(classifier) if isinstance(classifier, str) else classifier
        self.generation_controller = generation_controller or BudgetForcingController(loaded.demand.max_tokens)
        if "thinking_budget" not in honoured_by(self.generation_controller):
            raise ConfigError(
                f"is a {type(self.generation_controller).__name__}, which keeps no thinking_budget; give a "
                "BudgetForcingController, or another that honours it",
                "generation_controller",
            )
        self.live = LivePlan(loaded, None if drift is None else _bounds(drift))

    def honours(self) -> frozenset[str]:
        return honoured_by(self.generation_controller) | {"task_type"}

    def bind(self, workers: Mapping[Any, Worker]) -> None:
        """Bind; a warning says where the plan was measured on another model."""
        super().bind(workers)
        self.live.plan.check_model(model_of(worker_for(workers, WorkerTag.GENERATION)))

    def run(
        self, task: GenerationTask, task_type: str | None = None, thinking_budget: int | None = None, **kwargs: Any
    ) -> ControllerGenerator:
        """Answer the task's prompt.

        Args:
            task_type: Name of the request's type; None asks the classifier.
            thinking_budget: Tokens of thinking of this request; the smaller of both budgets holds.
        """
        if task_type is None and self.classifier is not None:
            task_type = self.classifier(task.input_str or "")
        program = current_program()
        if program is not None and (figures := self.live.arrived(program.lifetime.began, task_type)) is not None:
            record("replan", **figures)
        plan = self.live.plan
        known = task_type in plan.budgets
        planned = plan.budgets[task_type] if known and task_type is not None else plan.mixture_budget
        if not known:
            self._say_unknown(task_type, plan)
        budget = planned if thinking_budget is None else min(planned, thinking_budget)
        record("queue_budget", task_type=task_type, known=known, planned=planned, given=budget)
        types = {str(task_type) if known else "of no planned type": 1}
        publish_figures(type(self).__name__, given_tokens=budget, planned=Ratio(int(known), 1), types=types)
        yield from self.generation_controller.process([task], thinking_budget=budget, **kwargs)

    def _say_unknown(self, task_type: str | None, plan: PlannedBudgets) -> None:
        reason = f"no type of the plan: {task_type!r}; it has: {', '.join(plan.budgets)}"
        record("warning", what="task_type", reason=reason)
        if self.logged_warnings.is_new("task_type"):
            _log.warning(
                "%s: a request is of %s; such requests get %d tokens", type(self).__name__, reason, plan.mixture_budget
            )


def _bounds(drift: Mapping[str, Any]) -> DriftBounds:
    unknown = sorted(set(drift) - set(DriftBounds.__dataclass_fields__))
    if unknown:
        raise ConfigError(f"has {', '.join(unknown)}; it takes {', '.join(DriftBounds.__dataclass_fields__)}", "drift")
    with require.under("drift"):
        return DriftBounds(**drift)


class LivePlan:
    """The budgets of a stack, which all its requests share.

    A new plan has the observed rate if the rate has drifted, and the observed mix if the mix has drifted.

    Args:
        plan: The first plan.
        bounds: What counts as a drift; None keeps the plan for ever.
    """

    def __init__(self, plan: PlannedBudgets, bounds: DriftBounds | None) -> None:
        self.plan = plan
        self._window = None if bounds is None else ArrivalWindow(bounds)

    def arrived(self, seconds: float, name: str | None) -> dict[str, Any] | None:
        """Take note of an arrival.

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
