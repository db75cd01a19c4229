"""AUC of scores that should separate right from wrong chains: over all chains, and within questions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from scaffolding_ext.stats.intervals import Estimate

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NUM_RESAMPLES = 1000


def auc(scores: Floats, labels: Bools) -> float:
    """Probability that a positive scores above a negative, ties counting half; 0.5 if either class is empty."""
    negatives, positives = np.sort(scores[~labels]), scores[labels]
    if not len(negatives) or not len(positives):
        return 0.5
    sides: tuple[Integers, Integers] = (
        np.searchsorted(negatives, positives, "left"),
        np.searchsorted(negatives, positives, "right"),
    )
    return float(sum(side.sum() for side in sides) / (2 * len(negatives) * len(positives)))


def auc_over_all(scores: Floats, labels: Bools, questions: Integers) -> Estimate:
    """AUC over all chains, with the interval from resampling questions."""
    return resampled_groups(lambda i: auc(scores[i], labels[i]), questions)


def auc_within(scores: Floats, labels: Bools, questions: Integers) -> Estimate:
    """Mean AUC within questions, over the questions with both right and wrong chains; 0.5 without any."""
    members = [questions == question for question in np.unique(questions)]
    values = np.array([auc(scores[own], labels[own]) for own in members if 0 < labels[own].sum() < own.sum()])
    return resampled(lambda i: float(values[i].mean()), len(values)) if len(values) else Estimate(0.5, 0.0, 1.0)


def resampled(figure: Callable[[Integers], float], num_questions: int) -> Estimate:
    """A statistic of the questions, with the interval from resampling them."""
    return resampled_groups(figure, np.arange(num_questions))


def resampled_groups(figure: Callable[[Integers], float], questions: Integers) -> Estimate:
    """A statistic of rows, with the interval from resampling the questions they belong to."""
    rng = np.random.default_rng(0)
    members = [np.flatnonzero(questions == question) for question in np.unique(questions)]
    draws = rng.integers(len(members), size=(NUM_RESAMPLES, len(members)))
    values = [figure(np.concatenate([members[question] for question in draw])) for draw in draws]
    low, high = np.quantile(values, (0.025, 0.975))
    return Estimate(figure(np.arange(len(questions))), float(low), float(high))
