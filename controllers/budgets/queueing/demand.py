"""Load of a server from fitted or measured types of questions, and the best budgets for it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext import require
from scaffolding_ext.controllers.budgets.queueing.grid import MeasuredType, solve_on_grid
from scaffolding_ext.controllers.budgets.queueing.model import Moments
from scaffolding_ext.controllers.budgets.queueing.plan import solve
from scaffolding_ext.controllers.budgets.queueing.queues import Queue
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats, TaskType, shares_of
from scaffolding_ext.errors import ConfigError

_FLAT = 8.0  # times 1 / b: accuracy is flat beyond
_NUM_STEPS = 256  # budgets of a fitted curve that are compared for several places


class Forecast(NamedTuple):
    """Results of budgets, by formula.

    Attributes:
        system_time: Mean seconds of waiting and service; infinite if the load cannot be served.
        load: Share of the queue's capacity that is used.
    """

    accuracy: Floats
    system_time: Floats
    load: Floats
    objective: Floats


@dataclass(frozen=True)
class Demand:
    """Types of questions that arrive together, the value of a right answer, and the queue that serves them."""

    types: tuple[TaskType | MeasuredType, ...]
    arrival_rate: float
    alpha: float
    max_tokens: int
    queue: Queue = field(default_factory=Queue)

    def __post_init__(self) -> None:
        require.number("arrival_rate", self.arrival_rate, above=0)
        require.number("alpha", self.alpha, least=0)
        require.whole("max_tokens", self.max_tokens, 0)
        shares = shares_of(self.types)
        scaled = tuple(replace(each, probability=float(share)) for each, share in zip(self.types, shares, strict=True))
        object.__setattr__(self, "types", scaled)
        if len({type(each) for each in self.types}) > 1:
            raise ConfigError("mix fitted and measured types: give only one kind", "types")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.types)

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the arrivals, by type name."""
        return {each.name: each.probability for each in self.types}

    @property
    def fitted(self) -> list[TaskType]:
        return [each for each in self.types if isinstance(each, TaskType)]

    @property
    def measured(self) -> list[MeasuredType]:
        return [each for each in self.types if isinstance(each, MeasuredType)]

    def forecast(self, budgets: npt.ArrayLike) -> Forecast:
        tokens, shares = np.asarray(budgets, dtype=np.float64), shares_of(self.types)
        found = [each.given(tokens[..., k]) for k, each in enumerate(self.types)]
        accuracy, first, second, path = (np.stack(column, axis=-1) @ shares for column in zip(*found, strict=True))
        times = self.queue.mean_time(self.arrival_rate, Moments(first, second, path))
        load = self.arrival_rate * first / self.queue.capacity
        return Forecast(accuracy, times, load, self.alpha * accuracy - times)

    def best(self) -> tuple[int, ...]:
        """Budgets with the largest objective: the optimum of fitted curves, or of all measured combinations.

        For fitted curves and a queue of several places, evenly spaced budgets of each curve are compared.
        """
        if self.measured:
            return solve_on_grid(self.measured, self.arrival_rate, self.alpha, self.queue).budgets
        if self.queue.places == 1:
            return solve(self.fitted, self.arrival_rate, self.alpha, self.max_tokens).integer_budgets
        return solve_on_grid(list(map(self._sampled, self.fitted)), self.arrival_rate, self.alpha, self.queue).budgets

    def _sampled(self, task: TaskType) -> MeasuredType:
        """Return points of a fitted curve, up to where it is flat."""
        most = min(float(self.max_tokens), _FLAT / task.b)
        budgets = np.unique(np.linspace(0, most, _NUM_STEPS + 1).astype(int))
        of = task.given(budgets)
        columns = (tuple(column.tolist()) for column in (budgets, of.accuracy, of.seconds))
        return MeasuredType(task.name, task.probability, *columns)

    def best_uniform(self) -> int:
        """Single budget for all types with the largest objective, among whole numbers or measured budgets."""
        budgets = self._uniform_budgets()
        uniform = np.repeat(budgets[:, None], len(self.types), axis=1)
        return int(budgets[int(np.argmax(self.forecast(uniform).objective))])

    def _uniform_budgets(self) -> npt.NDArray[np.int64]:
        if self.measured:
            return np.array(sorted({n for each in self.measured for n in each.budgets if n <= self.max_tokens}))
        most = max(_FLAT / each.b for each in self.fitted)
        return np.arange(int(min(self.max_tokens, most)) + 1)
