"""Runs of one dataset at several budgets, and the types of questions that they tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scaffolding_ext import plain_yaml
from scaffolding_ext.controllers.budgets.queueing.fits import (
    AccuracyFit,
    ServiceFit,
    fit_accuracy,
    fit_monotone,
    fit_service,
)
from scaffolding_ext.controllers.budgets.queueing.grid import MeasuredType
from scaffolding_ext.controllers.budgets.queueing.tasks import TaskType
from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.run.records import each_record
from scaffolding_ext.evaluation.run.run_folder import CONFIG, SAMPLES
from scaffolding_ext.require import under

BUDGET_KEY = "controller.args.thinking_tokens"
ALL = "all"  # the type of questions that have no kind
_CROWDED = (
    "every run served several requests at once: their seconds are no service times; run some questions at each budget "
    "with --set max_parallel_requests=1"
)


class _SweptRow(NamedTuple):
    """What a record tells.

    Attributes:
        budget: Budget of its run.
        correct: Whether its answer is right.
        seconds: Until its answer.
        alone: Whether its run served one request at a time.
        again: Whether another run asked the same question at the same budget; then only its seconds count.
    """

    budget: int
    correct: bool
    seconds: float
    alone: bool
    again: bool


@dataclass(frozen=True)
class KindSweep:
    """What was measured on one kind of question, an entry a budget, budgets growing.

    Attributes:
        kind: Of the questions.
        share: Of all records.
        budgets: Tokens.
        num_correct: Right answers.
        num_answers: Answers.
        mean_seconds: Mean wall-clock of an answer.
        spread_seconds: Standard deviation of it.
        num_timed: Answers that the seconds are of; 0 where they are those of the fitted line.
        accuracy: The fitted curve.
        service: The fitted line.
    """

    kind: str
    share: float
    budgets: tuple[int, ...]
    num_correct: tuple[int, ...]
    num_answers: tuple[int, ...]
    mean_seconds: tuple[float, ...]
    spread_seconds: tuple[float, ...]
    num_timed: tuple[int, ...]
    accuracy: AccuracyFit
    service: ServiceFit

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of both fits, each behind the name of the kind."""
        return tuple(f"{self.kind}: {warning}" for warning in self.accuracy.warnings + self.service.warnings)

    def task(self) -> TaskType:
        """The type, as `solve` takes it.

        Raises:
            ConfigError: Seconds do not grow with the budget.
        """
        with under(self.kind):
            return TaskType(
                self.kind,
                self.share,
                self.accuracy.A.value,
                self.accuracy.b.value,
                self.accuracy.D.value,
                self.service.t0.value,
                self.service.c.value,
            )

    def measured(self) -> MeasuredType:
        """The type, as `solve_on_grid` takes it: its accuracy only rises."""
        rising = fit_monotone(self.budgets, self.num_correct, self.num_answers)
        return MeasuredType(
            self.kind, self.share, self.budgets, tuple(rising.tolist()), self.mean_seconds, self.spread_seconds
        )


@dataclass(frozen=True)
class Swept:
    """Runs at several budgets, kind of question by kind.

    Attributes:
        kinds: The kinds, by name.
        warnings: Warnings of the runs and of all fits.
        model: Model that generated in all runs; None where they name none, or different ones.
    """

    kinds: tuple[KindSweep, ...]
    warnings: tuple[str, ...]
    model: str | None


class _Mean(NamedTuple):
    """Seconds at a budget, and their standard deviation."""

    value: float
    spread: float


def read_sweep(runs: Sequence[Path], budget_key: str = BUDGET_KEY, seed: int = 0) -> Swept:
    """Read the folders of runs, and fit each kind of question.

    Accuracy is fitted to all runs. Seconds are fitted to the runs that served one request at a time, where there are
    such; at the other budgets they are those of the fitted line. A question that two runs asked at one budget counts
    once for accuracy.

    Args:
        runs: Folders that `eval --output_path` wrote, at three budgets at least.
        budget_key: Dotted key of the budget in a run's config.yaml.
        seed: Seed of the resamples for the intervals.

    Raises:
        DatasetError: A run cannot be read, or says no budget.
        ConfigError: There are fewer than three budgets.
    """
    rows: dict[str, list[_SweptRow]] = {}
    models, asked = set(), set()
    num_alone = 0
    for folder in runs:
        config = plain_yaml.read(folder / CONFIG) if (folder / CONFIG).exists() else None
        budget = _at(config, budget_key)
        if isinstance(budget, bool) or not isinstance(budget, int):
            raise DatasetError(
                f"{folder}: {CONFIG} says {budget!r} at {budget_key}; name the key of the budget by --budget_key"
            )
        models.add(_at(config, "workers.generation.args.model"))
        alone = _at(config, "max_parallel_requests") == 1
        num_alone += alone
        for record in each_record(folder / SAMPLES):
            key = (budget, record.id, record.epoch)
            row = _SweptRow(budget, record.correct, record.seconds["total"], alone, key in asked)
            asked.add(key)
            rows.setdefault(record.kind or ALL, []).append(row)
    warnings = () if num_alone else (_CROWDED,)
    total = len(asked)
    rng = np.random.default_rng(seed)
    kinds = tuple(_fitted(kind, found, total, rng) for kind, found in sorted(rows.items()))
    model = models.pop() if len(models) == 1 else None
    told = (*warnings, *(warning for kind in kinds for warning in kind.warnings))
    return Swept(kinds, told, model if isinstance(model, str) else None)


def _fitted(kind: str, rows: Sequence[_SweptRow], total: int, rng: np.random.Generator) -> KindSweep:
    answers = Counter(row.budget for row in rows if not row.again)
    right = Counter(row.budget for row in rows if row.correct and not row.again)
    budgets = sorted(answers)
    timed = [row for row in rows if row.alone] or rows
    with under(kind):
        accuracy = fit_accuracy(budgets, [right[n] for n in budgets], [answers[n] for n in budgets], rng)
        service = fit_service([row.budget for row in timed], [row.seconds for row in timed])
    line = {n: _Mean(service.t0.value + service.c.value * n, service.spread) for n in budgets}
    seconds = line | {n: _mean([row.seconds for row in timed if row.budget == n]) for n in {r.budget for r in timed}}
    num_timed = Counter(row.budget for row in timed)
    return KindSweep(
        kind,
        answers.total() / total,
        tuple(budgets),
        tuple(right[n] for n in budgets),
        tuple(answers[n] for n in budgets),
        tuple(seconds[n].value for n in budgets),
        tuple(seconds[n].spread for n in budgets),
        tuple(num_timed[n] for n in budgets),
        accuracy,
        service,
    )


def _mean(values: Sequence[float]) -> _Mean:
    return _Mean(float(np.mean(values)), float(np.std(values)))


def _at(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config.get(part) if isinstance(config, Mapping) else None
    return config
