"""Files of budgets: question types, and a plan of their budgets; `plan` writes both."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from scaffolding_ext.controllers.budgets.queueing.demand import Demand
from scaffolding_ext.controllers.budgets.queueing.grid import MeasuredType
from scaffolding_ext.controllers.budgets.queueing.tasks import TaskType
from scaffolding_ext.controllers.calibration_file import CalibrationFile
from scaffolding_ext.errors import ConfigError


class TypeFit(BaseModel):
    """Measurements of one type by `plan`, one entry per budget; other fields are informative.

    Attributes:
        monotone: Chance of a right answer, made monotone.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    kind: str
    budgets: list[int]
    monotone: list[float]
    mean_seconds: list[float]
    spread_seconds: list[float]


class TaskTypes(CalibrationFile):
    """Types of questions. A handwritten file needs only `tasks`."""

    command: ClassVar[str] = "plan RUN... --arrival_rate RATE --alpha SECONDS --json (its `types`)"

    kind: Literal["task_types"] = "task_types"
    tasks: list[TaskType] = Field(min_length=1)
    fits: list[TypeFit] = Field(default_factory=list)

    def measured(self, max_tokens: float) -> list[MeasuredType]:
        """Return the types as measured at budgets up to a bound.

        Raises:
            ConfigError: Nothing was measured, or only above the bound.
        """
        if not self.fits:
            raise ConfigError("has none; measured types are in the `types` that `plan RUN... --json` prints", "fits")
        shares = {task.name: task.probability for task in self.tasks}
        types = []
        for fit in self.fits:
            columns = zip(fit.budgets, fit.monotone, fit.mean_seconds, fit.spread_seconds, strict=True)
            kept = [row for row in columns if row[0] <= max_tokens]
            if not kept:
                raise ConfigError(
                    f"has no budget of {fit.kind!r} up to {max_tokens:g}, only {fit.budgets}; allow more tokens", "fits"
                )
            types.append(MeasuredType(fit.kind, shares[fit.kind], *map(tuple, zip(*kept, strict=True))))
        return types

    @model_validator(mode="after")
    def _check(self) -> TaskTypes:
        names = {task.name for task in self.tasks}
        for fit in self.fits:
            if fit.kind not in names:
                raise ValueError(f"fits has {fit.kind!r}, and the types are {sorted(names)}")
            if len({len(fit.budgets), len(fit.monotone), len(fit.mean_seconds), len(fit.spread_seconds)}) > 1:
                raise ValueError(f"the columns of {fit.kind!r} in fits differ in length; fit again")
        return self


class PlannedBudgets(CalibrationFile):
    """Budgets of a demand: tokens, or indices of a stack's settings.

    Attributes:
        mixture_budget: Budget of a question of unknown type: the best single budget for all types.
        forecast: Informative forecast of the budgets; None stands for an infinite time.
    """

    command: ClassVar[str] = "plan RUN... --arrival_rate RATE --alpha SECONDS --output_path STACK"

    kind: Literal["budget_plan"] = "budget_plan"
    demand: Demand
    budgets: dict[str, int]
    mixture_budget: int
    forecast: dict[str, float | None] = Field(default_factory=dict)
    uniform_forecast: dict[str, float | None] = Field(default_factory=dict)

    @classmethod
    def read(cls, plan: str | os.PathLike[str] | Mapping[str, Any]) -> PlannedBudgets:
        """Read the plan from a file or its plain data."""
        if not isinstance(plan, Mapping):
            return cls.load(plan)
        try:
            return cls.model_validate(plan)
        except ValidationError as error:
            first = error.errors()[0]
            raise ConfigError(f"is not a plan: {first['msg']}", ".".join(map(str, first["loc"]))) from error

    @classmethod
    def of(cls, demand: Demand, **origin: str | None) -> PlannedBudgets:
        budgets, uniform = demand.best(), demand.best_uniform()
        return cls(
            demand=demand,
            budgets=dict(zip(demand.names, budgets, strict=True)),
            mixture_budget=uniform,
            forecast=_forecast(demand, budgets),
            uniform_forecast=_forecast(demand, [uniform] * len(budgets)),
            **origin,  # type: ignore[arg-type]  # mypy checks them against all fields
        )

    @model_validator(mode="after")
    def _check(self) -> PlannedBudgets:
        if set(self.budgets) != set(self.demand.names):
            raise ValueError(f"has budgets of {sorted(self.budgets)}, and types {sorted(self.demand.names)}")
        return self


def _forecast(demand: Demand, budgets: Any) -> dict[str, float | None]:
    figures = demand.forecast(budgets)._asdict().items()
    return {name: float(value) if math.isfinite(value) else None for name, value in figures}
