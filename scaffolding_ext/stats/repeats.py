"""Metrics of questions answered several times: pass@k and majority@k."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt

from scaffolding_ext import require
from scaffolding_ext.stats.resampling import Floats

Booleans = npt.NDArray[np.bool_]


def pass_at_k(correct: npt.ArrayLike, k: int) -> Floats:
    """Unbiased estimate, for each question, of the probability that at least one of `k` attempts is right.

    Args:
        correct: Correctness of each attempt, shape [num_questions, num_attempts].
        k: Attempts drawn without replacement, from 1 to `num_attempts`.

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
    """Probability, for each question, that the vote of `k` attempts is right.

    The class with the most votes wins; ties go to the first. Attempts without an answer do not vote, and an empty vote
    is wrong.

    Args:
        classes: Class number of each attempt's answer, equal for equal answers and negative without an answer, shape
            [num_questions, num_attempts].
        correct: Correctness of each attempt, same shape.
        k: Attempts that vote, from 1 to `num_attempts`.
        num_subsets: Subsets of `k` attempts to draw, the same for all questions. If no more exist, all are taken and
            the result is exact.
    """
    right, given = _table("correct", correct), np.asarray(classes)
    if given.shape != right.shape:
        raise ValueError(f"classes has shape {given.shape} and correct {right.shape}; both need one entry per attempt.")
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
        raise ValueError(f"{name} has shape {table.shape}; expected [num_questions, num_attempts], not empty.")
    return table
