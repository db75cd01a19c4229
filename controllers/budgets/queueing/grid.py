"""Budgets chosen among measured ones, for accuracy of any shape: concavity is not assumed.

Accuracy against budget is often S-shaped. Then eq. 2 of the paper misfits, and `solve` optimizes the wrong curve. Here
each type comes with its measured budgets, accuracies and seconds, and the best combination is searched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np
import numpy.typing as npt

from scaffolding_ext import require
from scaffolding_ext.controllers.budgets.queueing.model import Moments
from scaffolding_ext.controllers.budgets.queueing.queues import Queue
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats, Given, check_served
from scaffolding_ext.errors import ConfigError

MAX_COMBINATIONS = 250_000  # about a tenth of a second: plans are also made while serving
_NUM_STARTS = 12
_ROUNDING = 1e-12


@dataclass(frozen=True)
class MeasuredType:
    """A type of question by its measurements, one entry per budget.

    Attributes:
        probability: Share of the arrivals, above 0.
        budgets: Increasing tokens, or numbers of settings.
        seconds: Mean seconds of work per question: the sum over its requests, each alone on the server.
        spread: Standard deviation of the work within the type, in seconds; 0 if omitted.
        path: Mean seconds of a question alone on the server, its requests in parallel; equals the work if omitted.
    """

    name: str
    probability: float
    budgets: tuple[int, ...]
    accuracies: tuple[float, ...]
    seconds: tuple[float, ...]
    spread: tuple[float, ...] = ()
    path: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        require.share("probability", self.probability)
        columns = (self.accuracies, self.seconds, self.spread or self.budgets, self.path or self.budgets)
        lengths = {len(self.budgets), *map(len, columns)}
        if len(lengths) > 1 or not self.budgets or list(self.budgets) != sorted(set(self.budgets)):
            raise ConfigError(
                f"are {self.budgets}; give increasing budgets, and an accuracy and seconds for each", "budgets"
            )

    @property
    def second_moments(self) -> Floats:
        """E[S²] of each budget."""
        return np.square(self.seconds) + np.square(self.spread or (0.0,) * len(self.seconds))

    def given(self, budgets: npt.ArrayLike) -> Given:
        """Results of budgets: linear interpolation of the measurements, constant beyond the ends."""
        columns = (self.accuracies, self.seconds, self.second_moments, self.path or self.seconds)
        tokens = np.asarray(budgets, dtype=np.float64)
        return Given(*(np.asarray(np.interp(tokens, self.budgets, column)) for column in columns))


@dataclass(frozen=True)
class GridPlan:
    """The best budgets found among the measured ones.

    Attributes:
        is_global: True if every combination was compared; otherwise no single change of a budget improves the plan.
    """

    budgets: tuple[int, ...]
    objective: float
    is_global: bool


def solve_on_grid(
    types: Sequence[MeasuredType], arrival_rate: float, alpha: float, queue: Queue | None = None
) -> GridPlan:
    """Best combination of measured budgets in an M/G/1 queue, or another queue with a formula.

    Dominated budgets of a type are dropped. Up to 250,000 combinations of the others are compared exhaustively; beyond
    that, the best of coordinate searches from many starts is taken.
    """
    require.number("arrival_rate", arrival_rate, above=0)
    require.number("alpha", alpha, least=0)
    if not types:
        raise ConfigError("is empty: give at least one type", "types")
    queue = queue or Queue()
    shortest = math.fsum(each.probability * min(each.seconds) for each in types)
    check_served(arrival_rate, shortest, queue.capacity, "even at the quickest budgets")
    terms = [
        each.probability * np.array([each.accuracies, each.seconds, each.second_moments, each.path or each.seconds])
        for each in types
    ]

    def worth(sums: Floats) -> Floats:
        return np.asarray(alpha * sums[0] - queue.mean_time(arrival_rate, Moments(*sums[1:])))

    kept = [undominated(term) for term in terms]
    places, is_global = best_of_sums([term[:, own] for term, own in zip(terms, kept, strict=True)], worth)
    chosen = [int(own[place]) for own, place in zip(kept, places, strict=True)]
    total = sum((term[:, at] for term, at in zip(terms, chosen, strict=True)), np.zeros(len(terms[0])))
    budgets = tuple(each.budgets[at] for each, at in zip(types, chosen, strict=True))
    return GridPlan(budgets, float(worth(total)), is_global)


def undominated(term: Floats) -> npt.NDArray[np.int64]:
    """Options of a type that no other dominates in accuracy and all costs; the first of equal ones.

    Args:
        term: Accuracy and costs, shape [num_columns, num_options].
    """
    losses = np.vstack([-term[:1], term[1:]]).T
    _, first = np.unique(losses, axis=0, return_index=True)
    numbers = np.sort(first)
    losses = losses[numbers]
    return numbers[[not ((losses <= own).all(axis=1) & (losses < own).any(axis=1)).any() for own in losses]]


def best_of_sums(terms: Sequence[Floats], worth: Callable[[Floats], Floats]) -> tuple[list[int], bool]:
    """Option of each type such that the sums over types have the largest worth.

    Up to 250,000 combinations are compared exhaustively. Beyond that, one type at a time changes to its best option
    until no change improves; the best result of several starts is taken.

    Args:
        terms: Term of each type, shape [num_columns, num_options].
        worth: Worth of sums of shape [num_columns, ...].
    """
    sizes = [term.shape[1] for term in terms]
    if math.prod(sizes) <= MAX_COMBINATIONS:
        add = partial(reduce, lambda done, more: (done[:, :, None] + more[:, None, :]).reshape(len(done), -1))
        best = int(np.argmax(worth(add(terms))))
        return [int(index) for index in np.unravel_index(best, sizes)], True
    starts = [[round(part * (size - 1)) for size in sizes] for part in np.linspace(0, 1, _NUM_STARTS)]
    starts.append([int(np.argmin(term[1])) for term in terms])
    ends = [_climbed(terms, worth, start) for start in starts]
    return max(ends, key=lambda end: end[1])[0], False


def _climbed(
    terms: Sequence[Floats], worth: Callable[[Floats], Floats], start: Sequence[int]
) -> tuple[list[int], float]:
    """Result of a coordinate search that changes one type's option at a time, and its worth."""
    here = list(start)
    total = sum((term[:, at] for term, at in zip(terms, here, strict=True)), np.zeros(len(terms[0])))
    value, gains = -math.inf, True
    while gains:
        gains = False
        for axis, term in enumerate(terms):
            others = total - term[:, here[axis]]
            values = worth(others[:, None] + term)
            best = int(np.argmax(values))
            if values[best] > value + _ROUNDING * (1 + abs(value) if math.isfinite(value) else 0.0):
                value, gains = float(values[best]), True
                here[axis], total = best, others + term[:, best]
    return here, value
