"""Queue-aware plans: each question gets what its type is worth while others wait, and plans follow the arrivals."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scaffolding_ext import require
from scaffolding_ext.controllers.base import BaseController, honoured_by
from scaffolding_ext.controllers.budgets.budget_forcing import BudgetForcingController
from scaffolding_ext.controllers.budgets.files import PlannedBudgets
from scaffolding_ext.controllers.budgets.queueing.arrivals import Arrivals, ArrivalWindow, DriftBounds
from scaffolding_ext.controllers.needs import Needs
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask, Worker
from scaffolding_ext.protocol.worker import WorkerTag, model_of, worker_for
from scaffolding_ext.registry import import_target
from scaffolding_ext.request.figures import Ratio
from scaffolding_ext.request.program import current_program, publish_figures, record

Classifier = Callable[[str], str | None]
_log = logging.getLogger(__name__)


class Planned(NamedTuple):
    """The type of a request, whether the plan knows it, and the plan's number for it."""

    task_type: str | None
    known: bool
    number: int


class PlannedController(BaseController):
    """Serves each request by the number that a plan has for its type.

    A request's type is its `task_type`, else what the classifier says. A request of no planned type gets the best
    single number for all types. Each `run` is an arrival, at the time when its request was submitted.

    Args:
        plan: A plan, its file, or the plain data of such a file.
        classifier: A function, or `package.module:function`: from the prompt as the model reads it to the type's name,
            or None.
        drift: The fields of `DriftBounds`; None keeps the plan.
    """

    def __init__(
        self,
        plan: str | Path | dict[str, Any] | PlannedBudgets,
        classifier: str | Classifier | None = None,
        *,
        drift: dict[str, float] | None = None,
    ) -> None:
        super().__init__()
        with require.under("plan"):
            loaded = plan if isinstance(plan, PlannedBudgets) else PlannedBudgets.read(plan)
        with require.under("classifier"):
            self.classifier = import_target(classifier) if isinstance(classifier, str) else classifier
        self.live = LivePlan(loaded, None if drift is None else _bounds(drift))

    def task_types(self) -> tuple[str, ...]:
        return tuple(self.live.plan.budgets)

    def bind(self, workers: Mapping[Any, Worker]) -> None:
        """Bind; a warning says where the plan was measured on another model."""
        super().bind(workers)
        self.live.plan.check_model(model_of(worker_for(workers, WorkerTag.GENERATION)))

    def planned(self, task: GenerationTask, task_type: str | None) -> Planned:
        """Take note of an arrival, and look its type up in the plan."""
        if task_type is None and self.classifier is not None:
            task_type = self.classifier(task.input_str or "")
        program = current_program()
        if program is not None and (figures := self.live.arrived(program.lifetime.began, task_type)) is not None:
            record("replan", **figures)
        plan = self.live.plan
        known = task_type in plan.budgets
        if program is not None and known:
            program.ledger.task_type = task_type
        number = plan.budgets[task_type] if known and task_type is not None else plan.mixture_budget
        if not known:
            self._say_unknown(task_type, plan)
        types = {str(task_type) if known else "of no planned type": 1}
        publish_figures(type(self).__name__, planned=Ratio(int(known), 1), types=types)
        return Planned(task_type, known, number)

    def named(self, number: int) -> str:
        """A number of the plan in words."""
        return f"{number} tokens"

    def _say_unknown(self, task_type: str | None, plan: PlannedBudgets) -> None:
        reason = f"no type of the plan: {task_type!r}; it has: {', '.join(plan.budgets)}"
        record("warning", what="task_type", reason=reason)
        if self.memory.is_new("task_type"):
            given = self.named(plan.mixture_budget)
            _log.warning("%s: a request is of %s; such requests get %s", type(self).__name__, reason, given)


class QueueAwareBudgetController(PlannedController):
    """Gives each request the thinking budget of its type in a plan.

    Args:
        plan: What `scaffolding-ext tune --plan --plan_path` writes; see `PlannedController`.
        classifier: Names the type of a request without one.
        generation_controller: It must honour `thinking_budget`; None takes budget forcing.
        drift: The fields of `DriftBounds`; None keeps the plan.

    Reference: arXiv 2601.10274; planning anew is ours.
    """

    def __init__(
        self,
        plan: str | Path | dict[str, Any] | PlannedBudgets,
        classifier: str | Classifier | None = None,
        generation_controller: Controller | None = None,
        *,
        drift: dict[str, float] | None = None,
    ) -> None:
        super().__init__(plan, classifier, drift=drift)
        most = self.live.plan.demand.max_tokens
        self.generation_controller = generation_controller or BudgetForcingController(most)
        self.needs = Needs(fields=honoured_by(self.generation_controller) | {"task_type"})
        if "thinking_budget" not in self.needs.fields:
            raise ConfigError(
                f"is a {type(self.generation_controller).__name__}, which keeps no thinking_budget; give a "
                "BudgetForcingController, or another that honours it",
                "generation_controller",
            )

    def run(
        self, task: GenerationTask, task_type: str | None = None, thinking_budget: int | None = None, **kwargs: Any
    ) -> ControllerGenerator:
        """Answer the task's prompt; of `thinking_budget` and the planned budget the smaller one holds."""
        name, known, planned = self.planned(task, task_type)
        budget = planned if thinking_budget is None else min(planned, thinking_budget)
        record("queue_budget", task_type=name, known=known, planned=planned, given=budget)
        publish_figures(type(self).__name__, given_tokens=budget)
        yield from self.generation_controller.process([task], thinking_budget=budget, **kwargs)


class QueueAwareController(PlannedController):
    """Gives each request the setting of its type in a plan: thinking budget, number of samples, stop and weight.

    Args:
        plan: A plan whose numbers count `settings`; `scaffolding-ext tune --plan` writes one. See
            `PlannedController`.
        settings: A controller for each number of the plan.
        classifier: Names the type of a request without one.
        drift: The fields of `DriftBounds`; None keeps the plan.
    """

    def __init__(
        self,
        plan: str | Path | dict[str, Any] | PlannedBudgets,
        settings: Sequence[Controller],
        classifier: str | Classifier | None = None,
        *,
        drift: dict[str, float] | None = None,
    ) -> None:
        super().__init__(plan, classifier, drift=drift)
        self.settings = list(settings)
        self.needs = Needs(fields=frozenset.intersection(*map(honoured_by, self.settings)) | {"task_type"})
        most = max((max(each.budgets) for each in self.live.plan.demand.measured), default=-1)
        if not 0 <= most < len(self.settings):
            raise ConfigError(
                f"has {len(self.settings)} controllers, and the plan counts settings from 0 to {most}: give a plan of "
                "measured types, and a controller for each of its numbers",
                "settings",
            )

    def named(self, number: int) -> str:
        return f"setting {number}"

    def run(self, task: GenerationTask, task_type: str | None = None, **kwargs: Any) -> ControllerGenerator:
        """Answer the task's prompt by the setting of its type."""
        name, known, number = self.planned(task, task_type)
        record("queue_setting", task_type=name, known=known, setting=number)
        yield from self.settings[number].process([task], **kwargs)


def _bounds(drift: Mapping[str, Any]) -> DriftBounds:
    unknown = sorted(set(drift) - set(DriftBounds.__dataclass_fields__))
    if unknown:
        raise ConfigError(f"has {', '.join(unknown)}; it takes {', '.join(DriftBounds.__dataclass_fields__)}", "drift")
    with require.under("drift"):
        return DriftBounds(**drift)


class LivePlan:
    """The plan of a stack, which all its requests share.

    A new plan has the observed rate if the rate has drifted, and the observed mix if the mix has drifted. It comes
    after `bounds.in_a_row` drifted windows in a row, and its rate stays within `bounds.most` times the first plan's.
    """

    def __init__(self, plan: PlannedBudgets, bounds: DriftBounds | None) -> None:
        self.plan = plan
        self._first_rate = plan.demand.arrival_rate
        self._bounds = bounds
        self._window = None if bounds is None else ArrivalWindow(bounds)
        self._num_drifted = 0

    @property
    def replans(self) -> bool:
        """Whether a drift makes a new plan."""
        return self._window is not None

    def arrived(self, seconds: float, name: str | None) -> dict[str, Any] | None:
        """Take note of an arrival; returns both plans and why for a trace, or None where the plan stays."""
        if self._window is None or self._bounds is None:
            return None
        found = self._window.add(seconds, name, self.plan.demand.arrival_rate, self.plan.demand.shares)
        if found is None:
            return None
        self._num_drifted = self._num_drifted + 1 if found.drifted else 0
        if self._num_drifted < self._bounds.in_a_row:
            return None
        self._num_drifted = 0
        return self._replan(found, self._bounds)

    def _replan(self, found: Arrivals, bounds: DriftBounds) -> dict[str, Any] | None:
        before = self.plan
        rate, shares = before.demand.arrival_rate, before.demand.shares
        if found.rate_drifted:
            rate = min(max(found.rate.value, self._first_rate / bounds.most), self._first_rate * bounds.most)
            if rate == before.demand.arrival_rate and not found.mix_drifted:
                return None  # the bound has been reached
        self.plan = before.replanned(rate, found.shares if found.mix_drifted else shares)
        _log.info(
            "planned anew: %.4g arrivals a second were planned and %.4g came; the plan was %s and is %s",
            *(before.demand.arrival_rate, found.rate.value, before.budgets, self.plan.budgets),
        )
        return {
            "arrival_rate": found.rate._asdict(),
            "planned_rate": before.demand.arrival_rate,
            "rate_drifted": found.rate_drifted,
            "shares": found.shares,
            "planned_shares": shares,
            "mix_drifted": found.mix_drifted,
            "budgets_before": dict(before.budgets),
            "budgets": dict(self.plan.budgets),
        }
