"""Figures of questions that were answered several times: pass@k, and the vote of k."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt

from scaffolding_ext import require
from scaffolding_ext.stats.resampling import Floats

Booleans = npt.NDArray[np.bool_]


def pass_at_k(correct: npt.ArrayLike, k: int) -> Floats:
    """For each question the chance that at least one of `k` of its attempts is right, without bias.

    Args:
        correct: Whether each attempt is right, shape [num_questions, num_attempts].
        k: From 1 to `num_attempts`; attempts are drawn without replacement.

    Reference: Chen et al., "Evaluating Large Language Models Trained on Code", 2021, equation 1.
    """
    right = _table("correct", correct)
    num_attempts = right.shape[1]
    k = require.whole("k", k, 1, num_attempts)
    num_draws = math.comb(num_attempts, k)
    all_wrong = [math.comb(num_attempts - num_right, k) / num_draws for num_right in range(num_attempts + 1)]
    shares: Floats = 1.0 - np.array(all_wrong)[right.sum(axis=1)]
    return shares


def majority_at_k(
    classes: npt.ArrayLike, correct: npt.ArrayLike, k: int, *, rng: np.random.Generator, num_subsets: int = 64
) -> Floats:
    """For each question how often the vote of `k` of its attempts is right.

    The class with the most votes wins; of equals, the first one. Attempts without an answer do not
    vote, and a vote without votes is wrong.

    Args:
        classes: Which answers are equal: a class number for each attempt, negative without an answer, shape
            [num_questions, num_attempts].
        correct: Whether each attempt is right, of the same shape.
        k: Attempts that vote, from 1 to `num_attempts`.
        num_subsets: Subsets of `k` attempts, the same for all questions. Where there are no more, all are taken, and
            the figure is exact.
    """
    right, given = _table("correct", correct), np.asarray(classes)
    if given.shape != right.shape:
        raise ValueError(f"classes has shape {given.shape} and correct {right.shape}; give one of each for an attempt.")
    num_attempts = right.shape[1]
    k = require.whole("k", k, 1, num_attempts)
    if math.comb(num_attempts, k) <= num_subsets:
        subsets = np.array(list(itertools.combinations(range(num_attempts), k)))
    else:
        orders = rng.permuted(np.tile(np.arange(num_attempts), (num_subsets, 1)), axis=1)
        subsets = np.sort(orders[:, :k], axis=1)
    num_right = np.zeros(len(right))
    for subset in subsets:
        votes = given[:, subset]
        num_votes = np.where(votes < 0, 0, (votes[:, :, None] == votes[:, None, :]).sum(axis=2))
        winner = num_votes.argmax(axis=1)[:, None]
        has_won = np.take_along_axis(num_votes, winner, 1) > 0
        num_right += (np.take_along_axis(right[:, subset], winner, 1) & has_won)[:, 0]
    shares: Floats = num_right / len(subsets)
    return shares


def _table(name: str, values: npt.ArrayLike) -> Booleans:
    table = np.asarray(values, np.bool_)
    if table.ndim != 2 or not table.size:
        raise ValueError(f"{name} has shape {table.shape}; give a row for each question, with an entry an attempt.")
    return table
