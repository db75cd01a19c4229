"""Bandit arms: the scores of a choice, and draws from the posterior of their mean (Thompson sampling)."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Literal

import numpy as np
import numpy.typing as npt

Posterior = Literal["gaussian", "beta"]
Floats = npt.NDArray[np.float64]
M, KAPPA, NU, TAU2 = 0.0, 1.0, 1.0, 0.1  # priors of the Gaussian arms
A, B = 0.5, 0.5  # priors of the Beta arms


def arm(*scores: float) -> Floats:
    """An arm: the number of its scores, their sum, and their sum of squares."""
    return np.array([len(scores), sum(scores), sum(score * score for score in scores)], dtype=float)


class Siblings:
    """One row of numbers per child, in the order of the children; choosing among many takes a few array operations.

    Args:
        num_columns: Numbers per child.

    Attributes:
        numbers: Child of each row: its number among its siblings.
    """

    __slots__ = ("_table", "numbers")

    def __init__(self, num_columns: int) -> None:
        self.numbers: list[int] = []
        self._table = np.zeros((num_columns, 4))

    @property
    def columns(self) -> npt.NDArray[np.float64]:
        """All numbers, shape [num_columns, num_rows]; a view."""
        return self._table[:, : len(self.numbers)]

    def put(self, number: int, *row: float) -> None:
        """Set or replace a child's row."""
        at, num = bisect_left(self.numbers, number), len(self.numbers)
        if at < num and self.numbers[at] == number:
            self._table[:, at] = row
            return
        if num == self._table.shape[1]:
            self._table = np.concatenate([self._table, np.zeros_like(self._table)], axis=1)
        if at < num:
            self._table[:, at + 1 : num + 1] = self._table[:, at:num].copy()
        self.numbers.insert(at, number)
        self._table[:, at] = row

    def drop(self, number: int) -> None:
        at = self._find(number)
        if at is not None:
            num = len(self.numbers)
            self._table[:, at : num - 1] = self._table[:, at + 1 : num].copy()
            self.numbers.pop(at)

    def _find(self, number: int) -> int | None:
        at = bisect_left(self.numbers, number)
        return at if at < len(self.numbers) and self.numbers[at] == number else None


class Known:
    """Statistics of a node: scores of its direct children, scores from below them, and those of its subtree."""

    __slots__ = ("children", "cont", "gen", "most_alike", "values")

    def __init__(self) -> None:
        self.gen, self.cont = arm(), arm()
        self.children = Siblings(3)  # arms of the children that can be expanded
        self.values: Counter[float] = Counter()
        self.most_alike = 0  # how often the most frequent score occurs

    def saw(self, score: float) -> None:
        self.values[score] += 1
        self.most_alike = max(self.most_alike, self.values[score])


def draws(model: Posterior, arms: Floats, rng: np.random.Generator) -> Floats:
    """One draw from each arm's posterior, shape [num_arms].

    Args:
        model: `"gaussian"`: the mean under a normal-inverse-chi-square prior (0, 1, 1, 0.1); `"beta"`: under Beta(0.5,
            0.5) with fractional counts.
        arms: Columns as from `arm`, shape [3, num_arms].
        rng: Source of randomness.
    """
    num, total, squares = arms
    if model == "beta":
        return np.asarray(rng.beta(A + total, B + num - total))
    mean = total / np.maximum(num, 1)
    kappa, nu = KAPPA + num, NU + num
    spread = np.maximum(0.0, squares - num * mean * mean)
    scale = NU * TAU2 + spread + num * KAPPA / kappa * (M - mean) ** 2
    variance = scale / rng.chisquare(nu)
    return np.asarray(rng.normal((KAPPA * M + num * mean) / kappa, np.sqrt(variance / kappa)))
