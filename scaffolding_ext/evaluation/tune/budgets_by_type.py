"""Choose a thinking budget for each type of question, for a queue; types are fitted to runs at several budgets.

Reference: Ozbas and Bastopcu, arXiv 2601.10274.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scaffolding_ext import plain_yaml
from scaffolding_ext.controllers.budgets.files import PlannedBudgets, TaskTypes, TypeFit
from scaffolding_ext.controllers.budgets.queueing.demand import Demand
from scaffolding_ext.controllers.budgets.queueing.fits import fit_accuracy, fit_monotone, fit_service
from scaffolding_ext.controllers.budgets.queueing.queues import Queue
from scaffolding_ext.controllers.budgets.queueing.tasks import TaskType
from scaffolding_ext.documents import fingerprint
from scaffolding_ext.evaluation.run.records import each_record
from scaffolding_ext.evaluation.run.run_folder import CONFIG, SAMPLES
from scaffolding_ext.evaluation.stack_sections import EvaluationConfig
from scaffolding_ext.evaluation.tune.stack_file import budgets_stack_of
from scaffolding_ext.require import under
from scaffolding_ext.stack.config import StackConfig
from scaffolding_ext.stack.load import load_config

MAX_TOKENS = 32768  # largest budget
ALL = "all"  # the type of questions without a kind
_BUDGET = "controller.args.thinking_tokens"
_CROWDED = (
    "every run served several requests at once, so their seconds include waiting: run some questions at each budget "
    "with --set max_parallel_requests=1"
)


class _SweptRow(NamedTuple):
    """One record.

    Attributes:
        is_alone: Its run served one request at a time.
        is_again: Another run asked the same question at the same budget; then only its seconds count.
    """

    budget: int
    is_right: bool
    seconds: float
    is_alone: bool
    is_again: bool


def budgets_of(folders: Sequence[Path]) -> set[int]:
    """Return the thinking budgets of runs; none if a folder is no run with a budget."""
    budgets = [_at(_config(folder), _BUDGET) for folder in folders]
    return set(budgets) if all(isinstance(budget, int) for budget in budgets) else set()


def read_sweep(folders: Sequence[Path]) -> tuple[TaskTypes, list[str]]:
    """Fit a type to each kind of question, and warn of doubtful fits.

    Accuracy is fitted to all runs. Seconds are fitted to the runs that served one request at a time, if there are any;
    other budgets take those of the fitted line. A question that two runs asked at one budget counts once for accuracy.

    Raises:
        DatasetError: A run cannot be read.
        ConfigError: There are fewer than three budgets, or seconds do not grow with the budget.
    """
    rows: dict[str, list[_SweptRow]] = {}
    models, asked, is_any_alone = set(), set(), False
    for folder in folders:
        config = _config(folder)
        budget, is_alone = _at(config, _BUDGET), _at(config, "max_parallel_requests") == 1
        is_any_alone |= is_alone
        models.add(_at(config, "workers.generation.args.model"))
        for record in each_record(folder / SAMPLES):
            key = (budget, record.id, record.epoch)
            row = _SweptRow(budget, record.correct, record.seconds["total"], is_alone, key in asked)
            rows.setdefault(record.kind or ALL, []).append(row)
            asked.add(key)
    rng = np.random.default_rng(0)
    fits = [_fitted(kind, found, rng) for kind, found in sorted(rows.items())]
    shares = {fit.kind: sum(fit.num_answers) / len(asked) for fit in fits}
    model = models.pop() if len(models) == 1 else None
    types = TaskTypes(tasks=[_task(fit, shares[fit.kind]) for fit in fits], model=model, fits=fits)
    warnings = [f"{fit.kind}: {warning}" for fit in fits for warning in fit.warnings]
    if ALL in rows:
        unnamed = "no question names its kind" if len(rows) == 1 else "some questions name no kind"
        warnings.insert(0, f"{unnamed}, so they are planned as one type, {ALL!r}")
    return types, warnings if is_any_alone else [_CROWDED, *warnings]


def common_stack(folders: Sequence[Path]) -> StackConfig | None:
    """Return the runs' stack without dataset and evaluation; None if their workers differ."""
    first, *others = (load_config(folder / CONFIG) for folder in folders)
    if any(each.workers != first.workers for each in others):
        return None
    return first.model_copy(update={"dataset": None, "evaluation": EvaluationConfig()})


def _fitted(kind: str, rows: Sequence[_SweptRow], rng: np.random.Generator) -> Any:
    """Fit one kind: return its fits with intervals, misses and measured points, as a `TypeFit`."""
    answers = Counter(row.budget for row in rows if not row.is_again)
    right = Counter(row.budget for row in rows if row.is_right and not row.is_again)
    budgets = sorted(answers)
    num_right, num_answers = [right[each] for each in budgets], [answers[each] for each in budgets]
    timed = [row for row in rows if row.is_alone] or rows
    with under(kind):
        curve = fit_accuracy(budgets, num_right, num_answers, rng)
        line = fit_service([row.budget for row in timed], [row.seconds for row in timed])
    seconds = [[row.seconds for row in timed if row.budget == budget] for budget in budgets]
    return TypeFit.model_validate(
        {
            "kind": kind,
            **{name: getattr(curve, name)._asdict() for name in ("A", "b", "D")},
            **{name: getattr(line, name)._asdict() for name in ("t0", "c")},
            "largest_miss": curve.largest_miss,
            "p_value": curve.p_value,
            "budgets": budgets,
            "num_correct": num_right,
            "num_answers": num_answers,
            "monotone": fit_monotone(budgets, num_right, num_answers).tolist(),
            "mean_seconds": [
                float(np.mean(own)) if own else line.t0.value + line.c.value * budget
                for budget, own in zip(budgets, seconds, strict=True)
            ],
            "spread_seconds": [float(np.std(own)) if own else line.spread for own in seconds],
            "warnings": [*curve.warnings, *line.warnings],
        }
    )


def _task(fit: Any, share: float) -> TaskType:
    with under(fit.kind):
        return TaskType(fit.kind, share, **{name: getattr(fit, name)["value"] for name in ("A", "b", "D", "t0", "c")})


def _config(folder: Path) -> Any:
    return plain_yaml.read(folder / CONFIG) if (folder / CONFIG).exists() else None


def _at(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config.get(part) if isinstance(config, Mapping) else None
    return config


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
