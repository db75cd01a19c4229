"""Budgets out of measured ones, for any shape of accuracy: nothing is assumed to be concave.

Accuracy against budget is often S-shaped. Then eq. 2 of the paper misses, and `solve` optimises the wrong curve. Here
each type brings the budgets that were tried, with their accuracies and seconds; the best combination is looked for.
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

MAX_COMBINATIONS = 250_000  # about a tenth of a second: plans are also made while a server serves
_NUM_STARTS = 12
_ROUNDING = 1e-12


@dataclass(frozen=True)
class MeasuredType:
    """A type of question by what was measured, an entry a budget.

    Attributes:
        probability: Share of the arrivals, above 0.
        budgets: Tokens, or numbers of settings; each more than the one before.
        seconds: Mean seconds of work of a question: those of all its requests, each alone on the server.
        spread: Standard deviation of the work within the type, in seconds; 0 where left out.
        path: Mean seconds that a question takes alone, its requests side by side; the work where left out.
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
                f"are {self.budgets}; give growing budgets, and an accuracy and seconds for each", "budgets"
            )

    @property
    def second_moments(self) -> Floats:
        """E[S²] of each budget."""
        return np.square(self.seconds) + np.square(self.spread or (0.0,) * len(self.seconds))

    def given(self, budgets: npt.ArrayLike) -> Given:
        """What budgets give: as measured, on straight lines between, and beyond the ends as there."""
        columns = (self.accuracies, self.seconds, self.second_moments, self.path or self.seconds)
        tokens = np.asarray(budgets, dtype=np.float64)
        return Given(*(np.asarray(np.interp(tokens, self.budgets, column)) for column in columns))


@dataclass(frozen=True)
class GridPlan:
    """The best budgets that were found among the measured ones.

    Attributes:
        is_global: Whether every combination was compared; else no single change of a budget gains.
    """

    budgets: tuple[int, ...]
    objective: float
    is_global: bool


def solve_on_grid(
    types: Sequence[MeasuredType], arrival_rate: float, alpha: float, queue: Queue | None = None
) -> GridPlan:
    """The best combination of measured budgets in an M/G/1 queue, or in another of which there is a formula.

    A budget that another one of its type beats is left out. Up to 250,000 combinations of the others are all
    compared; beyond, the best of coordinate searches from many starts is taken.
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
    """The options of a type that no other one beats in accuracy and in all costs; the first of those alike.

    Args:
        term: Accuracy and costs, shape [num_columns, num_options].
    """
    losses = np.vstack([-term[:1], term[1:]]).T
    _, first = np.unique(losses, axis=0, return_index=True)
    numbers = np.sort(first)
    losses = losses[numbers]
    return numbers[[not ((losses <= own).all(axis=1) & (losses < own).any(axis=1)).any() for own in losses]]


def best_of_sums(terms: Sequence[Floats], worth: Callable[[Floats], Floats]) -> tuple[list[int], bool]:
    """The option of each type whose sums over the types are worth most.

    Up to 250,000 combinations are all compared. Beyond, one type at a time changes to its best option until no
    change gains; the best end of several starts is taken.

    Args:
        terms: Of each type, shape [num_columns, num_options].
        worth: Takes sums of shape [num_columns, ...].
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
    """Where a search ends that changes one type's option at a time, and what that is worth."""
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


def best_by_coordinates(
    worth: Callable[[Sequence[int]], float], sizes: Sequence[int], starts: Sequence[Sequence[int]]
) -> list[int]:
    """Change one place at a time to its best value, until no change gains; the best end of several starts."""
    known: dict[tuple[int, ...], float] = {}

    def looked_up(place: Sequence[int]) -> float:
        key = tuple(place)
        if key not in known:
            known[key] = worth(key)
        return known[key]

    ends = []
    for start in starts:
        here, gains = list(start), True
        while gains:
            gains = False
            for axis, size in enumerate(sizes):
                line = [[*here[:axis], at, *here[axis + 1 :]] for at in range(size)]
                best = max(line, key=looked_up)
                if looked_up(best) > looked_up(here):
                    here, gains = best, True
        ends.append(here)
    return max(ends, key=looked_up)
