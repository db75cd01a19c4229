"""Queue-aware plans: each question gets what its type is worth while others wait."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scaffolding_ext import require
from scaffolding_ext.controllers.base import BaseController, honoured_by
from scaffolding_ext.controllers.budgets.budget_forcing import BudgetForcingController
from scaffolding_ext.controllers.budgets.files import PlannedBudgets
from scaffolding_ext.controllers.needs import Needs
from scaffolding_ext.controllers.run import Run
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask, Worker
from scaffolding_ext.protocol.worker import WorkerTag, model_of, worker_for
from scaffolding_ext.registry import import_target
from scaffolding_ext.request.program import current_program

_log = logging.getLogger(__name__)

Classifier = Callable[[str], str | None]


class QueueAwareBudgetController(BaseController):
    """Gives each request the thinking budget of its type in a plan.

    A request's type is its `task_type`, else the classifier's result. A request of no planned type gets the best single
    budget for all types.

    Args:
        plan: A plan, its file, or its plain data, as `scaffolding-ext plan` writes it into a stack.
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
        self._warn_once = functools.cache(_log.warning)  # shared by all clones
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

    def run(
        self, task: GenerationTask, task_type: str | None = None, thinking_budget: int | None = None, **kwargs: Any
    ) -> ControllerGenerator:
        """Answer the task's prompt within the smaller of `thinking_budget` and the planned budget."""
        run, plan = Run(self, task), self.plan
        if task_type is None and self.classifier is not None:
            task_type = self.classifier(task.input_str or "")
        known, planned = task_type in plan.budgets, plan.budgets.get(task_type or "", plan.mixture_budget)
        program = current_program()
        if program is not None and known:
            program.ledger.task_type = task_type
        if not known:
            types = ", ".join(plan.budgets)
            run.event("warning", what="task_type", reason=f"no type of the plan: {task_type!r}; it has: {types}")
            self._warn_once(f"{run.name}: requests of no type of the plan get {planned} tokens; it has: {types}")
        budget = planned if thinking_budget is None else min(planned, thinking_budget)
        run.event("queue_budget", task_type=task_type, known=known, planned=planned, given=budget)
        run.sum_up(planned=known, types=str(task_type) if known else "of no planned type", given_tokens=budget)
        yield from self.generation_controller.process([task], thinking_budget=budget, **kwargs)
