"""Error bars and tests for paired evaluations.

Two systems answer the same questions, often several times each. Samples of one question are correlated, so the
bootstrap draws whole questions; treating samples as independent would make the intervals too narrow.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext import require
from scaffolding_ext.stats.resampling import Floats, checked_pair, critical_value, group_by_question, resampled_totals

_MOST_RESAMPLED = 10_000  # questions


class Interval(NamedTuple):
    low: float
    high: float


class Estimate(NamedTuple):
    value: float
    low: float
    high: float


class McNemar(NamedTuple):
    """Number of questions that only `a` or only `b` answered correctly, and the two-sided p-value of equal ability."""

    only_a: int
    only_b: int
    p_value: float


def wilson_interval(num_successes: int, num_trials: int, confidence: float = 0.95) -> Interval:
    """Score interval of a proportion, for independent trials; (0, 1) without trials.

    Reference: Wilson, "Probable inference, the law of succession, and statistical inference", JASA 1927.
    """
    n = require.whole("num_trials", num_trials, 0)
    k = require.whole("num_successes", num_successes, 0)
    if k > n:
        raise ValueError(f"num_successes is {k} of num_trials {n}; it must lie in [0, {n}]: were the two swapped?")
    return _score_interval(k / n if n else 0.5, n, confidence)


def share_of_questions(num_right: npt.ArrayLike, num_samples: npt.ArrayLike, confidence: float = 0.95) -> Estimate:
    """Share of correct samples, with Wilson's interval at the effective sample size.

    Samples of one question are correlated and count for fewer independent ones: as many as would give the binomial
    variance that the share has between questions. With one sample per question this is `wilson_interval`.

    Args:
        num_right: Correct samples of each question, shape [num_questions]; a mean over subsets may be a fraction.
        num_samples: Samples of each question, same shape, above 0.

    Returns:
        The share and its interval. If all samples are right, all are wrong, or all belong to one question, each
        question counts as one sample.

    Reference: Korn, Graubard, "Confidence intervals for proportions with small expected number of positive counts
        estimated from survey data", Survey Methodology 1998, for the effective number; Wilson, 1927, for the interval.
    """
    right, sizes = checked_pair("num_right", num_right, "num_samples", num_samples)
    total = float(sizes.sum())
    share = min(1.0, float(right.sum()) / total)
    variance = float(((right - share * sizes) ** 2).sum()) / total**2
    binomial = share * (1 - share)
    if len(sizes) == 1 or not binomial:
        effective = float(len(sizes))
    else:
        effective = min(total, binomial / variance) if variance > 0 else total
    return Estimate(share, *_score_interval(share, effective, confidence))


def _score_interval(share: float, num_trials: float, confidence: float) -> Interval:
    """Wilson's interval; scipy supports only whole numbers of trials."""
    z = critical_value(confidence)
    if not num_trials:
        return Interval(0.0, 1.0)
    scale = 1 + z * z / num_trials
    centre = (share + z * z / (2 * num_trials)) / scale
    half_width = z * math.sqrt(share * (1 - share) / num_trials + (z / (2 * num_trials)) ** 2) / scale
    low = 0.0 if share == 0 else max(0.0, centre - half_width)
    return Interval(min(low, share), 1.0 if share == 1 else max(share, min(1.0, centre + half_width)))


def paired_bootstrap(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    questions: npt.ArrayLike | None = None,
    *,
    rng: np.random.Generator,
    num_resamples: int = 10_000,
    confidence: float = 0.95,
) -> Estimate:
    """Mean of `a - b` with a percentile interval from resampling whole questions.

    Args:
        a: Values of the first system, shape [num_samples], finite.
        b: Values of the second system on the same samples, same shape.
        questions: Question id of each sample, integers or strings; samples with the same id are drawn together. None
            makes each sample its own question.

    Returns:
        The mean over samples and its interval. Below some 30 questions the interval is too narrow.

    Raises:
        ValueError: Shapes differ, a value is not finite, or there are fewer than 2 questions.

    Reference: Efron, Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13, for the percentile interval;
        Davison, Hinkley, "Bootstrap Methods and their Application", 1997, section 3.8, for drawing whole clusters.
    """
    values_a, values_b = checked_pair("a", a, "b", b)
    grouped = group_by_question(questions, len(values_a))
    totals = grouped.totals(values_a - values_b)
    num_samples = grouped.totals(np.ones_like(values_a))
    return _quotient(totals, num_samples, rng, num_resamples, confidence)


def mcnemar_exact(a_correct: npt.ArrayLike, b_correct: npt.ArrayLike) -> McNemar:
    """Exact two-sided test that two systems are right equally often on the same questions.

    Only questions on which exactly one is right count; under the null each goes either way with probability 1/2. The
    smaller tail is doubled and capped at 1; the p-value is 1 without such questions.

    Args:
        a_correct: Correctness of the first system, shape [num_questions], booleans or 0 and 1. Repeated samples of one
            question are not independent: use `paired_bootstrap` for them.
        b_correct: Correctness of the second system, same shape.

    Reference: McNemar, "Note on the sampling error of the difference between correlated proportions", Psychometrika
        1947.

    Deviation: The exact binomial tail instead of the paper's chi-squared approximation.
    """
    right_a, right_b = checked_pair("a_correct", a_correct, "b_correct", b_correct)
    for name, right in (("a_correct", right_a), ("b_correct", right_b)):
        if not np.isin(right, (0.0, 1.0)).all():
            raise ValueError(f"{name} has an entry that is neither 0 nor 1; give booleans, one a question.")
    only_a, only_b = int(np.sum(right_a > right_b)), int(np.sum(right_b > right_a))
    num_discordant = only_a + only_b
    from scipy.stats import binomtest  # half a second to import

    return McNemar(only_a, only_b, float(binomtest(only_a, num_discordant).pvalue) if num_discordant else 1.0)


def crossed(by_run: Estimate, by_question: Estimate) -> Estimate:
    """Interval when both runs and questions vary: the half-widths of the two intervals added in quadrature.

    Both estimates have the same value. The interval is slightly too wide: the part common to runs and questions is
    counted twice.

    Reference: Cameron, Gelbach & Miller, "Robust inference with multiway clustering", 2011, equation 2.12, without its
        last term, which subtracts the common part.
    """
    value = by_run.value
    low = math.hypot(value - by_run.low, value - by_question.low)
    high = math.hypot(by_run.high - value, by_question.high - value)
    return Estimate(value, value - low, value + high)


def bootstrap_quotients(
    numerators: npt.ArrayLike,
    denominators: npt.ArrayLike,
    *,
    rng: np.random.Generator,
    num_resamples: int = 10_000,
    confidence: float = 0.95,
) -> list[Estimate]:
    """Several quotients of totals over the same questions, with percentile intervals from the same resamples.

    Shared resamples cost little more than those of one quotient. Above 10,000 questions the interval is the normal
    interval of the linearized quotient, to which the percentiles converge.

    Args:
        numerators: One row per question, one column per quotient, shape [num_questions, num_quotients], finite.
        denominators: Same shape; every column's total above 0. If a resample's total is 0, its quotient counts as
            infinite.

    Raises:
        ValueError: Shapes differ, there are fewer than 2 questions, or a total is not above 0.
    """
    above, below = np.asarray(numerators, dtype=float), np.asarray(denominators, dtype=float)
    if above.ndim != 2 or above.shape != below.shape or len(above) < 2:
        raise ValueError(
            f"numerators have shape {above.shape} and denominators {below.shape}; give both one row for each of at "
            "least 2 questions, and one column a quotient."
        )
    if not (np.isfinite(above).all() and np.isfinite(below).all() and (below.sum(axis=0) > 0).all()):
        raise ValueError("numerators and denominators must be finite, and every denominator's total above 0.")
    half_width = critical_value(confidence)  # refuses a share outside (0, 1)
    num_resamples = require.whole("num_resamples", num_resamples, 1)
    values = above.sum(axis=0) / below.sum(axis=0)
    if len(above) > _MOST_RESAMPLED:
        errors = np.sqrt(((above - values * below) ** 2).sum(axis=0)) / below.sum(axis=0)
        half = half_width * errors
        return [Estimate(*map(float, ends)) for ends in zip(values, values - half, values + half, strict=True)]
    resampled_above, resampled_below = _resampled_columns(above, below, num_resamples, rng)
    is_zero = resampled_below <= 0
    quotients = np.where(is_zero, np.inf, resampled_above / np.where(is_zero, 1, resampled_below))
    shares = ((1 - confidence) / 2, (1 + confidence) / 2)
    method: Literal["nearest", "linear"] = (
        "nearest" if is_zero.any() else "linear"
    )  # between a number and infinity nothing can be interpolated
    ends = np.quantile(quotients, shares, axis=0, method=method).T
    return [Estimate(float(value), float(low), float(high)) for value, (low, high) in zip(values, ends, strict=True)]


def _resampled_columns(above: Floats, below: Floats, num_resamples: int, rng: np.random.Generator) -> list[Floats]:
    """Return both arrays' column totals in each resample of the rows; equal columns are summed once."""
    columns, place = np.unique(np.hstack((above, below)), axis=1, return_inverse=True)
    totals = resampled_totals(columns, len(columns), num_resamples, rng)
    return np.hsplit(totals[:, place.ravel()], 2)


def _quotient(
    numerators: Floats, denominators: Floats, rng: np.random.Generator, num_resamples: int, confidence: float
) -> Estimate:
    """A single quotient of totals over questions."""
    (estimate,) = bootstrap_quotients(
        numerators[:, None], denominators[:, None], rng=rng, num_resamples=num_resamples, confidence=confidence
    )
    return estimate
