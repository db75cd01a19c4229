"""Conformal p-values against brute force and their own guarantee.

The Monte-Carlo study draws 2,000 calibration sets with one new score each, so its rates are binomial: a rate that may
not exceed alpha is held to `alpha + 4 * sqrt(alpha * (1 - alpha) / 2_000)`, one that must equal it to both sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from scaffolding_ext.controllers.draft_target.p_values import Ties, leave_one_out_p_values, p_values

Floats = npt.NDArray[np.float64]

NUM_REPETITIONS = 2_000
NUM_CALIBRATION = 49
ALPHAS = (0.05, 0.1, 0.25, 0.4, 0.6)

scores_lists = st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=30)
alphas = st.integers(0, 100).map(lambda percent: percent / 100)


def seeded(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def band(alpha: float) -> float:
    """Four binomial standard errors."""
    return 4 * math.sqrt(alpha * (1 - alpha) / NUM_REPETITIONS)


# Values


def test_p_values_by_hand() -> None:
    calibration = [1.0, 2.0, 2.0, 5.0]
    assert p_values(calibration, [0.0, 1.0, 2.0, 3.0, 5.0, 6.0]).tolist() == [1.0, 1.0, 0.8, 0.4, 0.4, 0.2]


@given(scores_lists, scores_lists, alphas)
def test_conservative_p_values_are_exact_counts(calibration: list[float], scores: list[float], alpha: float) -> None:
    exact = Fraction(repr(alpha))
    for score, p_value in zip(scores, p_values(calibration, scores).tolist(), strict=True):
        count = Fraction(1 + sum(one >= score for one in calibration), len(calibration) + 1)
        assert p_value == float(count)
        assert (count <= exact) == (p_value <= alpha)


@given(scores_lists, scores_lists, st.integers(0, 2**32 - 1))
def test_random_p_values_lie_between_the_counts_above_and_the_conservative_ones(
    calibration: list[float], scores: list[float], seed: int
) -> None:
    drawn = p_values(calibration, scores, "random", seeded(seed))
    above = np.array([sum(one > score for one in calibration) for score in scores]) / (len(calibration) + 1)
    assert np.all(above < drawn)
    assert np.all(drawn <= p_values(calibration, scores))
    assert np.array_equal(drawn, p_values(calibration, scores, "random", seeded(seed)))


@given(scores_lists, st.sampled_from(["conservative", "random"]))
def test_leave_one_out_ranks_each_score_among_the_others(scores: list[float], ties: Ties) -> None:
    together = leave_one_out_p_values(scores, ties, seeded(1))
    rng = seeded(1)
    for index, score in enumerate(scores):
        others = scores[:index] + scores[index + 1 :]
        if others:
            assert together[index] == p_values(others, [score], ties, rng)[0]
        else:
            assert together[index] == (1.0 if ties == "conservative" else 1 - rng.random())


# The guarantee


def continuous(rng: np.random.Generator) -> Floats:
    return rng.gamma(2.0, 0.3, size=NUM_CALIBRATION + 1)


def tied(rng: np.random.Generator) -> Floats:
    """Two in five are copies of one score, as among first drafts of a small model."""
    scores = continuous(rng)
    return np.where(rng.random(len(scores)) < 0.4, 0.5, scores)


def exchangeable_not_independent(rng: np.random.Generator) -> Floats:
    """Scores of one question: they share its difficulty."""
    return rng.normal() + 0.5 * continuous(rng)


LAWS = (continuous, tied, exchangeable_not_independent)


def drawn_p_values(law: Callable[[np.random.Generator], Floats], ties: Ties, conditional: bool) -> Floats:
    """One p-value from each of the repetitions.

    Conditional: of one of 16 first-turn drafts among the others.
    """
    rng = seeded(7)
    drawn = np.empty(NUM_REPETITIONS)
    for repetition in range(NUM_REPETITIONS):
        scores = law(rng)
        if conditional:
            drawn[repetition] = leave_one_out_p_values(scores[:16], ties, rng)[0]
        else:
            drawn[repetition] = p_values(scores[1:], scores[:1], ties, rng)[0]
    return drawn


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("ties", ["conservative", "random"])
def test_the_rate_is_at_most_alpha_and_with_random_ties_equal_to_it(
    law: Callable[[np.random.Generator], Floats], conditional: bool, ties: Ties
) -> None:
    drawn = drawn_p_values(law, ties, conditional)
    for alpha in ALPHAS:
        rate = float(np.mean(drawn <= alpha))
        assert rate <= alpha + band(alpha)
        if ties == "random":
            assert rate >= alpha - band(alpha)
    assert kstest(drawn, "uniform", alternative="two-sided" if ties == "random" else "greater").pvalue > 1e-4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: p_values([], [1.0]), r"calibration has shape \(0,\)"),
        (lambda: p_values([math.nan], [1.0]), r"calibration\[0\] is nan"),
        (lambda: p_values([1.0], [math.inf]), r"scores\[0\] is inf"),
        (lambda: p_values([1.0], [1.0], "random"), "ties is 'random' without rng"),
        (lambda: p_values([1.0], [1.0], "lucky"), "ties: is 'lucky'; choose one of conservative, random"),  # type: ignore[arg-type]
        (lambda: leave_one_out_p_values([1.0], "random"), "without rng"),
    ],
)
def test_what_cannot_be_ranked_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
