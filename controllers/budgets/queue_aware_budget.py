"""Queue-aware plans: each question gets what its type is worth while others wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from scaffolding_ext import require
from scaffolding_ext.controllers.base import BaseController, honoured_by
from scaffolding_ext.controllers.budgets.budget_forcing import BudgetForcingController
from scaffolding_ext.controllers.budgets.files import PlannedBudgets
from scaffolding_ext.controllers.needs import Needs
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask, Worker
from scaffolding_ext.protocol.worker import WorkerTag, model_of, worker_for
from scaffolding_ext.registry import import_target
from scaffolding_ext.request.figures import Ratio
from scaffolding_ext.request.program import current_program, publish_figures, record

Classifier = Callable[[str], str | None]


class Planned(NamedTuple):
    """The type of a request, True if the plan knows it, and the plan's budget for it."""

    task_type: str | None
    known: bool
    number: int


class QueueAwareBudgetController(BaseController):
    """Gives each request the thinking budget of its type in a plan.

    A request's type is its `task_type`, else the classifier's result. A request of no planned type gets the best single
    budget for all types.

    Args:
        plan: A plan, its file, or its plain data, as `scaffolding-ext tune --plan` writes it into a stack.
        classifier: A function, or `package.module:function`: from the prompt as the model reads it to the type's name,
            or None.
        generation_controller: It must honour `thinking_budget`; None takes budget forcing.

    Reference: arXiv 2601.10274.
    """

    def __init__(
        self,
        plan: str | Path | dict[str, Any] | PlannedBudgets,
        classifier: str | Classifier | None = None,
        generation_controller: Controller | None = None,
    ) -> None:
        super().__init__()
        with require.under("plan"):
            self.plan = plan if isinstance(plan, PlannedBudgets) else PlannedBudgets.read(plan)
        with require.under("classifier"):
            self.classifier = import_target(classifier) if isinstance(classifier, str) else classifier
        self.generation_controller = generation_controller or BudgetForcingController(self.plan.demand.max_tokens)
        self.needs = Needs(fields=honoured_by(self.generation_controller) | {"task_type"})
        if "thinking_budget" not in self.needs.fields:
            raise ConfigError(
                f"is a {type(self.generation_controller).__name__}, which keeps no thinking_budget; give a "
                "BudgetForcingController, or another that honours it",
                "generation_controller",
            )

    def task_types(self) -> tuple[str, ...]:
        return tuple(self.plan.budgets)

    def bind(self, workers: Mapping[Any, Worker]) -> None:
        super().bind(workers)
        self.plan.check_model(model_of(worker_for(workers, WorkerTag.GENERATION)))

    def planned(self, task: GenerationTask, task_type: str | None) -> Planned:
        if task_type is None and self.classifier is not None:
            task_type = self.classifier(task.input_str or "")
        program = current_program()
        plan = self.plan
        known = task_type in plan.budgets
        if program is not None and known:
            program.ledger.task_type = task_type
        number = plan.budgets[task_type] if known and task_type is not None else plan.mixture_budget
        if not known:
            self._say_unknown(task_type, plan)
        types = {str(task_type) if known else "of no planned type": 1}
        publish_figures(type(self).__name__, planned=Ratio(int(known), 1), types=types)
        return Planned(task_type, known, number)

    def _say_unknown(self, task_type: str | None, plan: PlannedBudgets) -> None:
        reason = f"no type of the plan: {task_type!r}; it has: {', '.join(plan.budgets)}"
        record("warning", what="task_type", reason=reason)
        known = ", ".join(plan.budgets)
        self.warn_once(
            f"{type(self).__name__}: requests of no type of the plan get {plan.mixture_budget} tokens; it has: {known}"
        )

    def run(
        self, task: GenerationTask, task_type: str | None = None, thinking_budget: int | None = None, **kwargs: Any
    ) -> ControllerGenerator:
        """Answer the task's prompt within the smaller of `thinking_budget` and the planned budget."""
        name, known, planned = self.planned(task, task_type)
        budget = planned if thinking_budget is None else min(planned, thinking_budget)
        record("queue_budget", task_type=name, known=known, planned=planned, given=budget)
        publish_figures(type(self).__name__, given_tokens=budget)
        yield from self.generation_controller.process([task], thinking_budget=budget, **kwargs)
