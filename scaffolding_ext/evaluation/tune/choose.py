"""Choose a setting, judge the choice on questions that had no part in it, and promise by learn-then-test.

A large grid judged on few questions chooses noise. Therefore settings come as short lists, each from the most careful
to the boldest. A choice has two steps: the best setting of each list, then a list. The lists are resampled to learn how
much of the first step is chance, and among lists within one standard error of the best the plainest wins: the package's
default before all others.

Reported figures are cross-fitted: the questions (whole runs if there are several) are split into folds, and each fold
is judged under the setting that the others chose.

Reference: Breiman, Friedman, Olshen & Stone, "Classification and Regression Trees", 1984, section 3.4.3, for the rule
of one standard error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scaffolding_ext.evaluation.logs.samples import Floats, Ints
from scaffolding_ext.evaluation.tune.costs import PATHS
from scaffolding_ext.evaluation.tune.replay import NUM_FOLDS, Replay
from scaffolding_ext.evaluation.tune.space import Setting
from scaffolding_ext.evaluation.tune.votes import ReplayResult, assembled, combined
from scaffolding_ext.stats.learn_then_test import learn_then_test, questions_needed

LEAST_QUESTIONS = 50  # below, a choice is worse than the default: benchmarks/studies/tune.py
_NUM_SPLITS = 10
_NUM_RESAMPLES = 60
_ROUNDING = 1e-9


class Candidates(NamedTuple):
    """Inputs of a choice, as sums over the questions of a group. A group is a question or a run.

    Attributes:
        lists: Indices of the settings of each list, the most careful first.
        complexity_rank: Plainness of each list, lowest for the plainest, shape [num_lists].
        loss: Right full votes minus right answers, shape [num_settings, num_groups].
        sizes: Questions of each group, shape [num_groups].
    """

    lists: Sequence[Sequence[int]]
    complexity_rank: Sequence[int]
    loss: Floats
    cost: Floats
    full_cost: Floats
    sizes: Floats


class Goal(ABC):
    """Goal of a choice."""

    def chosen(self, found: Candidates, weights: Floats, rng: np.random.Generator) -> int | None:
        """Return the index of the chosen setting; None if no setting is allowed."""
        values, best = self._best_of_lists(found, weights[:, None])
        if not np.isfinite(values).any():
            return None
        leader = int(np.argmin(values[:, 0]))
        resampled = rng.multinomial(int(weights.sum()), weights / weights.sum(), size=_NUM_RESAMPLES).T
        drawn, _ = self._best_of_lists(found, resampled.astype(float))
        drawn = np.minimum(drawn, 1.0)  # a list without an allowed setting leaves all samples
        above = drawn - drawn[leader]
        alike = values[:, 0] <= values[leader, 0] + above.std(axis=1) + _ROUNDING
        plainest = min(
            np.flatnonzero(alike).tolist(), key=lambda index: (found.complexity_rank[index], float(values[index, 0]))
        )
        return int(best[plainest, 0])

    def _best_of_lists(self, found: Candidates, weights: Floats) -> tuple[Floats, Ints]:
        """Return value and index of the best setting per list and column of weights; infinite if none is allowed.

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
        """Return the value of each setting of a list, lower is better; infinite if it is not allowed.

        Args:
            loss: Mean loss, as a share, shape [num_settings, num_columns].
            cost: Share of the cost of all samples, of the same shape.
        """


@dataclass(frozen=True)
class Cheapest(Goal):
    """The lowest cost among settings that lose at most `max_loss` against the full vote, a share.

    The loss of a list can only grow from setting to setting, so no setting is allowed after one that loses too much.
    """

    max_loss: float

    def values(self, loss: Floats, cost: Floats) -> Floats:
        allowed = np.maximum.accumulate(loss, axis=0) <= self.max_loss + _ROUNDING
        return np.where(allowed, cost, np.inf)


@dataclass(frozen=True)
class MostAccurate(Goal):
    """The most right answers among settings that cost at most `max_cost`, a share of the cost of all samples."""

    max_cost: float

    def values(self, loss: Floats, cost: Floats) -> Floats:
        return np.where(cost <= self.max_cost + _ROUNDING, loss, np.inf)


def cross_fitted(found: Candidates, goal: Goal, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Let the goal choose a setting for each fold of groups from the groups outside it, over several splits.

    The choice that judges a group is `chosen[split, folds[split, group]]`. With a single group there is none.

    Returns:
        `folds`, the fold of each group, shape [num_splits, num_groups], and `chosen`, the index of the setting that
        each fold is judged under, or -1 if the goal allows none, shape [num_splits, num_folds].
    """
    num_groups = len(found.sizes)
    num_folds = min(NUM_FOLDS, num_groups)
    if num_folds == 1:  # there are no other folds to choose for it
        return np.zeros((1, 1), dtype=np.int64), np.array([[-1]])
    folds = np.stack([rng.permutation(num_groups) % num_folds for _ in range(_NUM_SPLITS)])
    chosen = np.full((_NUM_SPLITS, num_folds), -1)
    for split, own in enumerate(folds):
        for fold in range(num_folds):
            index = goal.chosen(found, (own != fold).astype(float), rng)
            chosen[split, fold] = -1 if index is None else index
    return folds, chosen


def chosen(plays: Replay, goal: Goal, time_share: float | None = None) -> Setting | None:
    """Return the choice on all questions; None if no setting is allowed."""
    settings, found = candidates_of(plays, plays.lists, time_share)
    index = goal.chosen(found, np.ones(len(found.sizes)), plays.rng(1))
    return None if index is None else settings[index]


def is_too_small(plays: Replay, goal: Goal) -> bool:
    """Return True if the default setting is to be preferred to a choice on so few questions."""
    recording = plays.recording
    is_covered = isinstance(goal, Cheapest) and plays.cost not in PATHS
    return is_covered and recording.num_samples > 1 and len(recording.questions) < LEAST_QUESTIONS


def cross_validated(
    plays: Replay,
    goal: Goal,
    lists: Mapping[str, Sequence[Setting]] | None = None,
    time_share: float | None = None,
) -> ReplayResult:
    """Play the choice on questions that had no part in it, by cross-fitting over groups.

    Args:
        lists: Settings to choose from; None takes those of the replay.
        time_share: As in `Replay.cost_of`.
    """
    settings, found = candidates_of(plays, plays.lists if lists is None else lists, time_share)
    played = []
    for own, choices in zip(*cross_fitted(found, goal, plays.rng(2)), strict=True):
        parts = [plays.full if index < 0 else plays.played[settings[index]] for index in choices.tolist()]
        played.append(assembled(parts, own[plays.groups]))
    return combined(played, lambda columns: np.mean(columns, axis=0))


def candidates_of(
    plays: Replay, lists: Mapping[str, Sequence[Setting]], time_share: float | None = None
) -> tuple[list[Setting], Candidates]:
    """Return the settings of the lists, and their losses and costs by group."""
    settings = [setting for own in lists.values() for setting in own]
    played = [plays.played[setting] for setting in settings]
    places = iter(range(len(settings)))
    return settings, Candidates(
        [[next(places) for _ in own] for own in lists.values()],
        [max(each.complexity_rank for each in own) for own in lists.values()],
        np.stack([plays.by_group(plays.full.right - each.right) for each in played]),
        np.stack([plays.by_group(plays.cost_of(each, time_share)) for each in played]),
        plays.by_group(plays.cost_of(plays.full, time_share)),
        plays.by_group(np.ones_like(plays.full.right)),
    )


class Promise(NamedTuple):
    """Bound on the loss of a setting on similar further questions, for the same models.

    Attributes:
        nearest: The setting with the smallest p-value; `nearest_loss` is the share of right full votes that it lost.
        num_needed: With fewer distinct questions, not even a setting without losses passes.
    """

    setting: Setting | None
    nearest: Setting
    nearest_loss: float
    max_loss: float
    confidence: float
    num_questions: int
    num_needed: int

    def __str__(self) -> str:
        """Format the promise, or the reason why there is none, as a sentence."""
        bound = f"at most {100 * self.max_loss:g} points lost, with a confidence of {self.confidence:g}"
        if self.setting is not None:
            return f"{bound}, on further questions like these {self.num_questions}"
        return (
            f"nothing promises {bound}: the nearest ({self.nearest}) lost {100 * self.nearest_loss:.1f} points "
            f"of {self.num_questions} questions; the test needs at least {self.num_needed} questions: record more, or "
            "allow more loss"
        )


def promised(plays: Replay, max_loss: float, confidence: float, questions: Sequence[int] | None = None) -> Promise:
    """Test every setting that decides on each question independently.

    The loss of a question is how often a right full vote is lost. Runs of one question count as one, because questions
    are exchangeable, but runs of a question are correlated. Settings that were fitted to the questions are not
    tested, because they make the losses of questions depend on each other.
    """
    index = np.arange(len(plays.recording.questions)) if questions is None else np.asarray(questions)
    ids = np.array([f"{each.task}\n{each.id}" for each in plays.recording.questions])[index]
    _, question = np.unique(ids, return_inverse=True)
    number = np.bincount(question)
    every = (setting for own in plays.lists.values() for setting in own)
    settings = [each for each in every if not each.is_fitted]

    def mean(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.bincount(question, weights=values[index]) / number

    losses = np.column_stack([mean(plays.played[setting].lost) for setting in settings])
    costs = np.column_stack([mean(plays.cost_of(plays.played[setting])) for setting in settings])
    tested = learn_then_test(losses, costs, max_loss, 1 - confidence, np.random.default_rng([plays.seed, 5]))
    cheaper = np.flatnonzero(costs.mean(axis=0) < mean(plays.cost_of(plays.full)).mean())
    mean_losses = losses.mean(axis=0)
    nearest = min(
        cheaper.tolist() or range(len(settings)), key=lambda index: (tested.p_values[index], mean_losses[index])
    )
    return Promise(
        None if tested.chosen is None else settings[tested.chosen],
        settings[nearest],
        float(losses[:, nearest].mean()),
        max_loss,
        confidence,
        len(number),
        questions_needed(max_loss, 1 - confidence),
    )
