"""Bandit arms: the scores of a choice, and draws from the posterior of their mean (Thompson sampling)."""

from __future__ import annotations

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


class Known:
    """Statistics of a node: scores of its direct children, scores from below them, and those of its subtree."""

    __slots__ = ("children", "cont", "gen", "most_alike", "values")

    def __init__(self) -> None:
        self.gen, self.cont = arm(), arm()
        self.children: dict[int, Floats] = {}  # arms of the children that can be expanded, by number
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
