"""The file of a plan of budgets: the tokens of each type of question, and the load that they were planned for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from scaffolding_ext.controllers.budgets.queueing.demand import Demand
from scaffolding_ext.controllers.budgets.queueing.grid import MeasuredType
from scaffolding_ext.controllers.budgets.queueing.queues import Queue
from scaffolding_ext.controllers.budgets.queueing.tasks import TaskType, UnstableLoadError
from scaffolding_ext.controllers.calibration_file import read_json_calibration
from scaffolding_ext.documents import write_text


class _Document(BaseModel):
    """The file. `forecast` and `uniform_forecast` are for people; the rest is read back."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["budget_plan"] = "budget_plan"
    version: Literal[1] = 1
    data: str
    model: str | None
    arrival_rate: float
    alpha: float
    max_tokens: int
    places: int
    slowdown: float | None
    budgets: dict[str, int]
    mixture_budget: int
    forecast: Mapping[str, float | None]
    uniform_forecast: Mapping[str, float | None]
    fitted: list[TaskType]
    measured: list[MeasuredType]

    @model_validator(mode="after")
    def _check(self) -> _Document:
        names = self.demand().names
        if set(self.budgets) != set(names):
            raise ValueError(f"has budgets of {sorted(self.budgets)}, and types {sorted(names)}")
        return self

    def demand(self) -> Demand:
        """What the budgets were planned for."""
        queue = Queue(self.places, self.slowdown)
        return Demand((*self.fitted, *self.measured), self.arrival_rate, self.alpha, self.max_tokens, queue)


@dataclass(frozen=True)
class PlannedBudgets:
    """Budgets of a demand.

    Attributes:
        demand: The load that they were planned for.
        budgets: Tokens by name of the type.
        mixture_budget: Tokens of a question whose type is not known: the best of one budget for all types.
        data: Fingerprint of the file of types.
        model: Name of the model that the types were measured on; None if it is not known.
    """

    demand: Demand
    budgets: Mapping[str, int]
    mixture_budget: int
    data: str
    model: str | None = None

    @classmethod
    def of(cls, demand: Demand, data: str, model: str | None = None) -> PlannedBudgets:
        """The best budgets for a demand.

        Raises:
            UnstableLoadError: Not even the quickest budgets can be served.
        """
        budgets = dict(zip(demand.names, demand.best(), strict=True))
        return cls(demand, budgets, demand.best_uniform(), data, model)

    def replanned(self, arrival_rate: float, shares: Mapping[str, float]) -> PlannedBudgets:
        """The plan for the same types at another rate and in another mix.

        Where no budget can be served, each type gets its quickest one: nothing else lets the queue shrink.
        """
        demand = self.demand.changed(arrival_rate, shares)
        try:
            return self.of(demand, self.data, self.model)
        except UnstableLoadError:
            quickest = {each.name: min(getattr(each, "budgets", (0,))) for each in demand.types}
            return PlannedBudgets(demand, quickest, min(quickest.values()), self.data, self.model)

    @classmethod
    def load(cls, path: str | Path) -> PlannedBudgets:
        """Read a file; `configs:NAME` is one that ships with the package.

        Raises:
            ConfigError: It is not there, no such file, or of another version; or its budgets are not of its types.
        """
        found = read_json_calibration(path, _Document, "plan of budgets", "budget plan")
        return cls(found.demand(), found.budgets, found.mixture_budget, found.data, found.model)

    def save(self, path: str | Path) -> None:
        """Write the file.

        Raises:
            OutputError: It cannot be written.
        """
        write_text(path, self._document().model_dump_json(indent=1) + "\n")

    def document(self) -> dict[str, Any]:
        """What the file holds, as JSON has it."""
        return self._document().model_dump(mode="json")

    def _document(self) -> _Document:
        demand = self.demand
        whole = [self.budgets[name] for name in demand.names]
        forecast, uniform = (
            {name: float(value) for name, value in demand.forecast(budgets)._asdict().items()}
            for budgets in (whole, [self.mixture_budget] * len(whole))
        )
        return _Document(
            data=self.data,
            model=self.model,
            arrival_rate=demand.arrival_rate,
            alpha=demand.alpha,
            max_tokens=demand.max_tokens,
            places=demand.queue.places,
            slowdown=demand.queue.slowdown,
            budgets=dict(self.budgets),
            mixture_budget=self.mixture_budget,
            forecast=forecast,
            uniform_forecast=uniform,
            fitted=demand.fitted,
            measured=demand.measured,
        )
