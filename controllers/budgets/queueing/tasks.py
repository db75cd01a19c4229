"""Types of questions: growth of accuracy and service time with the budget of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from scaffolding_ext import require
from scaffolding_ext.errors import ConfigError

Floats = npt.NDArray[np.float64]
_ROUNDED = 0.01  # tolerance for rounded probabilities
_EXACT = 1e-9  # tolerance for unrounded ones


class Given(NamedTuple):
    """Results of budgets for a type of question: arrays of the budgets' shape.

    Attributes:
        seconds: Mean seconds of work: the sum over its requests, each alone on the server.
        square: Mean of the squared seconds of work.
        path: Mean seconds of a question alone on the server, its requests in parallel.
    """

    accuracy: Floats
    seconds: Floats
    square: Floats
    path: Floats


class UnstableLoadError(ConfigError):
    """Work arrives faster than it can be served, whatever the budgets.

    Attributes:
        largest_stable_rate: Upper limit of servable arrivals per second.
    """

    def __init__(self, arrival_rate: float, largest_stable_rate: float, what: str) -> None:
        super().__init__(
            f"is {arrival_rate:g} per second; {what}, so it must be below {largest_stable_rate:.6g}: send fewer "
            "requests, or use more servers",
            "arrival_rate",
        )
        self.arrival_rate = arrival_rate
        self.largest_stable_rate = largest_stable_rate
        self.what = what

    def __reduce__(self) -> tuple[type[UnstableLoadError], tuple[float, float, str]]:
        return type(self), (self.arrival_rate, self.largest_stable_rate, self.what)


def check_served(arrival_rate: float, seconds: float, capacity: float, how: str) -> None:
    """Refuse a load that cannot be served."""
    if arrival_rate * seconds >= capacity:
        raise UnstableLoadError(arrival_rate, capacity / seconds, f"serving takes {seconds:.6g} s on average {how}")


@dataclass(frozen=True)
class TaskType:
    """One type of question. Accuracy at l tokens is A (1 - exp(-b l)) + D, service takes t0 + c l seconds.

    Attributes:
        probability: Share of the arrivals, above 0.
        A: Accuracy that thinking can add, in [0, 1].
        b: Rate at which thinking adds accuracy, per token; above 0.
        D: Accuracy without thinking, in [0, 1]; A + D is at most 1.
        t0: Seconds of service without thinking, at least 0.
        c: Seconds per token of thinking, above 0.
    Reference: arXiv 2601.10274, eq. 1 (service) and 2 (accuracy).
    """

    name: str
    probability: float
    A: float
    b: float
    D: float
    t0: float
    c: float

    def __post_init__(self) -> None:
        require.share("probability", self.probability)
        require.number("A", self.A, least=0, most=1)
        require.number("b", self.b, above=0)
        require.number("D", self.D, least=0, most=1)
        require.number("t0", self.t0, least=0)
        require.number("c", self.c, above=0)
        if self.A + self.D > 1 + 1e-9:
            raise ConfigError(
                f"is {self.A} and D is {self.D}; A + D must be at most 1, since no accuracy is above 1", "A"
            )

    def given(self, budgets: npt.ArrayLike) -> Given:
        """Results of budgets, by eq. 1 and 2."""
        tokens = np.asarray(budgets, dtype=np.float64)
        seconds = self.t0 + self.c * tokens
        return Given(self.D - self.A * np.expm1(-self.b * tokens), seconds, seconds**2, seconds)


class Arriving(Protocol):
    """Name and share of a type of question."""

    @property
    def name(self) -> str: ...
    @property
    def probability(self) -> float: ...


def shares_of(tasks: Sequence[Arriving]) -> Floats:
    """Shares of the arrivals, summing to 1; rounded probabilities are rescaled.

    Raises:
        ConfigError: There is no type, names repeat, or probabilities sum to less than 0.99 or more than 1.01.
    """
    names = [task.name for task in tasks]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"have the names {names}; give at least one, with distinct names", "tasks")
    total = math.fsum(task.probability for task in tasks)
    if abs(total - 1) > _ROUNDED:
        raise ConfigError(f"have probabilities that sum to {total:g}; they must sum to 1, up to {_ROUNDED:g}", "tasks")
    scale = total if abs(total - 1) > _EXACT else 1.0
    return np.array([task.probability / scale for task in tasks])


@dataclass(frozen=True, eq=False)
class Mix:
    """Types of questions that arrive together, as arrays with one entry per type.

    Attributes:
        alpha: Value of an accuracy of 1, in seconds.
    """

    tasks: tuple[TaskType, ...]
    arrival_rate: float
    alpha: float
    max_tokens: float
    pi: Floats
    A: Floats
    b: Floats
    D: Floats
    t0: Floats
    c: Floats

    @classmethod
    def of(cls, tasks: Sequence[TaskType], arrival_rate: float, alpha: float, max_tokens: float) -> Mix:
        """Build the mix of some types.

        Raises:
            ConfigError: A number is outside its range, names repeat, or probabilities do not sum to 1.
            UnstableLoadError: Not even budgets of 0 can be served.
        """
        require.number("arrival_rate", arrival_rate, above=0)
        require.number("alpha", alpha, least=0)
        require.number("max_tokens", max_tokens, least=0)
        shares = shares_of(tasks)
        columns = np.array([[task.A, task.b, task.D, task.t0, task.c] for task in tasks]).T
        mix = cls(tuple(tasks), arrival_rate, alpha, max_tokens, shares, *columns)
        check_served(arrival_rate, float(mix.pi @ mix.t0), 1.0, "even without thinking")
        return mix
