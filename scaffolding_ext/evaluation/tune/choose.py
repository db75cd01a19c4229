"""Chooses a setting, and judges the choice on questions that did not choose.

A large grid that is judged on few questions chooses noise. So the settings come as short lists, each from the most
careful to the boldest. A choice has two steps: the best setting of each list, then a list. The lists are resampled to
learn how much the first step owes to chance, and of the lists that are within one standard error of the best the
plainest wins.

What is reported was judged by cross-fitting: the questions (whole runs where there are several) are split into folds,
and each fold is judged under the setting that the others chose.

Reference: Breiman, Friedman, Olshen & Stone, "Classification and Regression Trees", 1984, section 3.4.3, for the rule
of one standard error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scaffolding_ext.evaluation.tune.costs import Floats, Ints

NUM_FOLDS = 5
_NUM_SPLITS = 10
_NUM_RESAMPLES = 60
_ROUNDING = 1e-9


class Candidates(NamedTuple):
    """What a choice knows of each setting: sums over the questions of a group. A group is a question or a run.

    Attributes:
        lists: Indices of the settings of each list, the most careful first.
        plainness: How plain the settings of each list are, the plainest 0, shape [num_lists].
        loss: Right full votes less right answers, shape [num_settings, num_groups].
        cost: The cost, shape [num_settings, num_groups].
        full_cost: The cost of all samples, shape [num_groups].
        sizes: Questions of each group, shape [num_groups].
    """

    lists: Sequence[Sequence[int]]
    plainness: Sequence[int]
    loss: Floats
    cost: Floats
    full_cost: Floats
    sizes: Floats


class Goal(ABC):
    """What the choice is to be good at."""

    def chosen(self, found: Candidates, weights: Floats, rng: np.random.Generator) -> int | None:
        """Index of the setting that is chosen; None where no setting is allowed.

        Args:
            found: The settings.
            weights: How often each group counts, shape [num_groups].
            rng: Draws the resamples of the groups.
        """
        values, best = self._best_of_lists(found, weights[:, None])
        if not np.isfinite(values).any():
            return None
        leader = int(np.argmin(values[:, 0]))
        resampled = rng.multinomial(int(weights.sum()), weights / weights.sum(), size=_NUM_RESAMPLES).T
        drawn, _ = self._best_of_lists(found, resampled.astype(float))
        with np.errstate(invalid="ignore"):
            above = np.nan_to_num(drawn - drawn[leader], nan=0.0, posinf=1.0, neginf=-1.0)
        alike = values[:, 0] <= values[leader, 0] + above.std(axis=1) + _ROUNDING
        plainest = min(
            np.flatnonzero(alike).tolist(), key=lambda index: (found.plainness[index], float(values[index, 0]))
        )
        return int(best[plainest, 0])

    def _best_of_lists(self, found: Candidates, weights: Floats) -> tuple[Floats, Ints]:
        """Value and index of the best setting of each list, for each column of weights; infinite where none is allowed.

        Shapes [num_lists, num_columns].
        """
        loss = found.loss @ weights / (found.sizes @ weights)
        cost = found.cost @ weights / (found.full_cost @ weights)
        values, best = [], []
        for each in found.lists:
            own = self.values(loss[list(each)], cost[list(each)])
            first = np.argmin(own, axis=0)
            values.append(own[first, np.arange(own.shape[1])])
            best.append(np.asarray(each)[first])
        return np.stack(values), np.stack(best)

    @abstractmethod
    def values(self, loss: Floats, cost: Floats) -> Floats:
        """The value of each setting of a list, the lower the better; infinite where it is not allowed.

        Args:
            loss: Mean loss, as a share, shape [num_settings, num_columns].
            cost: Share of the cost of all samples, of the same shape.
        """


class Cheapest(Goal):
    """The lowest cost among settings that lose no more than allowed.

    The loss of a list can only grow from setting to setting. So no setting is allowed behind one that loses too much.

    Args:
        max_loss: Largest mean loss against the full vote, as a share.
    """

    def __init__(self, max_loss: float) -> None:
        self.max_loss = max_loss

    def values(self, loss: Floats, cost: Floats) -> Floats:
        allowed = np.maximum.accumulate(loss, axis=0) <= self.max_loss + _ROUNDING
        return np.where(allowed, cost, np.inf)


class MostAccurate(Goal):
    """The most right answers among settings that a budget pays for.

    Args:
        max_cost: The budget, as a share of the cost of all samples.
    """

    def __init__(self, max_cost: float) -> None:
        self.max_cost = max_cost

    def values(self, loss: Floats, cost: Floats) -> Floats:
        return np.where(cost <= self.max_cost + _ROUNDING, loss, np.inf)


def cross_fitted(found: Candidates, goal: Goal, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """What each group is judged under: the choice of the folds that it is not in, over several splits into folds.

    Returns:
        The fold of each group, and what the groups outside each fold chose, -1 for nothing; shapes [num_splits,
        num_groups] and [num_splits, num_folds].
    """
    num_groups = len(found.sizes)
    num_folds = min(NUM_FOLDS, num_groups)
    if num_folds == 1:  # nobody is left to choose for it
        return np.zeros((1, 1), dtype=np.int64), np.array([[-1]])
    folds = np.stack([rng.permutation(num_groups) % num_folds for _ in range(_NUM_SPLITS)])
    chosen = np.full((_NUM_SPLITS, num_folds), -1)
    for split, own in enumerate(folds):
        for fold in range(num_folds):
            index = goal.chosen(found, (own != fold).astype(float), rng)
            chosen[split, fold] = -1 if index is None else index
    return folds, chosen
