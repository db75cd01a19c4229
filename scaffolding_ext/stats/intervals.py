"""Error bars and tests for paired evaluations; `power` plans such evaluations.

Two systems answer the same questions, often several times each. Samples of one question are alike, so the bootstrap
draws whole questions: samples taken as independent would make the intervals too narrow.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext import require
from scaffolding_ext.stats.resampling import (
    Floats,
    checked_pair,
    critical_value,
    group_by_question,
    resampled_totals,
)


class Interval(NamedTuple):
    """A closed interval from `low` to `high`."""

    low: float
    high: float


class Estimate(NamedTuple):
    """A point estimate with the interval from `low` to `high`."""

    value: float
    low: float
    high: float


class McNemar(NamedTuple):
    """Questions that only `a` or only `b` answered correctly, and the two-sided p-value that both are equally able."""

    only_a: int
    only_b: int
    p_value: float


def wilson_interval(num_successes: int, num_trials: int, confidence: float = 0.95) -> Interval:
    """Score interval of a share, for independent trials; it stays within [0, 1] and keeps a width at 0 and at 1.

    Args:
        num_successes: Successes, from 0 to `num_trials`.
        num_trials: Trials, at least 0; without trials the interval is (0, 1).
        confidence: Nominal coverage, in (0, 1).

    Returns:
        The interval of the success probability.

    Raises:
        ValueError: If a count or `confidence` is outside its range.

    Reference:
        Wilson, "Probable inference, the law of succession, and statistical inference", JASA 1927.
    """
    z = critical_value(confidence)
    n = require.whole("num_trials", num_trials, 0)
    k = require.whole("num_successes", num_successes, 0)
    if k > n:
        raise ValueError(f"num_successes is {k} of num_trials {n}; it must lie in [0, {n}]: were the two swapped?")
    if n == 0:
        return Interval(0.0, 1.0)
    centre = (k + z * z / 2) / (n + z * z)
    half_width = z * math.sqrt(k * (n - k) / n + z * z / 4) / (n + z * z)
    low = 0.0 if k == 0 else max(0.0, centre - half_width)
    high = 1.0 if k == n else min(1.0, centre + half_width)
    return Interval(low, high)


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
        a: Per-sample values of the first system, shape [num_samples], finite.
        b: Per-sample values of the second on the same samples, shape [num_samples], finite.
        questions: Question id of each sample (integers or strings), shape [num_samples]; samples with one id are
            always drawn together. None: each sample is its own question.
        rng: Source of the resamples; same seed and data, same result.
        num_resamples: Bootstrap resamples, at least 1.
        confidence: Nominal coverage, in (0, 1).

    Returns:
        The mean over samples, and its interval, in the unit of `a`. Below some 30 questions the interval is too narrow.

    Raises:
        ValueError: If shapes differ, a value is not finite, there are fewer than 2 questions, or a setting is out of
            range.

    Reference:
        Efron, Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13, for the percentile interval; Davison,
        Hinkley, "Bootstrap Methods and their Application", 1997, section 3.8, for drawing whole clusters.
    """
    values_a, values_b = checked_pair("a", a, "b", b)
    grouped = group_by_question(questions, len(values_a))
    totals = grouped.totals(values_a - values_b)
    num_samples = grouped.totals(np.ones_like(values_a))
    return _quotient(totals, num_samples, rng, num_resamples, confidence)


def paired_bootstrap_ratio(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    questions: npt.ArrayLike | None = None,
    *,
    rng: np.random.Generator,
    num_resamples: int = 10_000,
    confidence: float = 0.95,
) -> Estimate:
    """Ratio `sum(a) / sum(b)`, for example of tokens, with a percentile interval from resampling whole questions.

    Args:
        a: Per-sample values of the first system, shape [num_samples], finite.
        b: Per-sample values of the second, shape [num_samples]; every question's total must be above 0.
        questions: As in `paired_bootstrap`.
        rng: As in `paired_bootstrap`.
        num_resamples: As in `paired_bootstrap`.
        confidence: As in `paired_bootstrap`.

    Returns:
        The ratio of the sums (not the mean of per-sample ratios) and its interval, without unit.

    Raises:
        ValueError: As in `paired_bootstrap`, or if some question's total of `b` is not above 0, so that a resample
            could divide by 0.

    Reference:
        As for `paired_bootstrap`.
    """
    values_a, values_b = checked_pair("a", a, "b", b)
    grouped = group_by_question(questions, len(values_a))
    denominators = grouped.totals(values_b)
    worst = int(np.argmin(denominators))
    if denominators[worst] <= 0:
        raise ValueError(
            f"b totals {denominators[worst]:g} on question {grouped.ids[worst]}; every total must be above 0, "
            "or a resample could divide by 0. Leave that question out of both, or compare means with paired_bootstrap."
        )
    return _quotient(grouped.totals(values_a), denominators, rng, num_resamples, confidence)


def mcnemar_exact(a_correct: npt.ArrayLike, b_correct: npt.ArrayLike) -> McNemar:
    """Exact two-sided test of whether two systems are right equally often on the same questions.

    Only questions on which exactly one is right count; under the null each goes either way with probability 1/2. The
    smaller tail is doubled and capped at 1; without such questions the p-value is 1.

    Args:
        a_correct: Whether the first system is right, shape [num_questions], booleans or 0 and 1. One entry a question:
            repeated samples of one question are not independent, and `paired_bootstrap` is made for them.
        b_correct: Whether the second is, shape [num_questions].

    Returns:
        The two counts and the p-value.

    Raises:
        ValueError: If shapes differ, there is no entry, or an entry is neither 0 nor 1.

    Reference:
        McNemar, "Note on the sampling error of the difference between correlated proportions", Psychometrika 1947.

    Deviation:
        The exact binomial tail in place of the paper's chi-squared approximation.
    """
    right_a, right_b = checked_pair("a_correct", a_correct, "b_correct", b_correct)
    for name, right in (("a_correct", right_a), ("b_correct", right_b)):
        if not np.isin(right, (0.0, 1.0)).all():
            raise ValueError(f"{name} has an entry that is neither 0 nor 1; give booleans, one a question.")
    only_a, only_b = int(np.sum(right_a > right_b)), int(np.sum(right_b > right_a))
    num_discordant = only_a + only_b
    tail = term = 1  # in units of 2 ** -num_discordant, as integers: exact at any size
    for k in range(min(only_a, only_b)):
        term = term * (num_discordant - k) // (k + 1)
        tail += term
    return McNemar(only_a, only_b, min(1.0, 2 * tail / 2**num_discordant))


def bootstrap_quotients(
    numerators: npt.ArrayLike,
    denominators: npt.ArrayLike,
    *,
    rng: np.random.Generator,
    num_resamples: int = 10_000,
    confidence: float = 0.95,
) -> list[Estimate]:
    """Several quotients of totals over the same questions, with percentile intervals from the same resamples.

    One set of resamples for all of them costs little more than one quotient does.

    Args:
        numerators: A row a question, a column a quotient, shape [num_questions, num_quotients], finite.
        denominators: As `numerators`; every column's total above 0.
        rng: As in `paired_bootstrap`.
        num_resamples: As in `paired_bootstrap`.
        confidence: As in `paired_bootstrap`.

    Returns:
        An estimate for each column. Where a resample's denominator is 0 its quotient counts as infinite.

    Raises:
        ValueError: If shapes differ, there are fewer than 2 questions, a total is not above 0, or a setting is out of
            range.

    Reference:
        As for `paired_bootstrap`.
    """
    above, below = np.asarray(numerators, dtype=float), np.asarray(denominators, dtype=float)
    if above.ndim != 2 or above.shape != below.shape or len(above) < 2:
        raise ValueError(
            f"numerators have shape {above.shape} and denominators {below.shape}; give both one row for each of at "
            "least 2 questions, and one column a quotient."
        )
    if not (np.isfinite(above).all() and np.isfinite(below).all() and (below.sum(axis=0) > 0).all()):
        raise ValueError("numerators and denominators must be finite, and every denominator's total above 0.")
    critical_value(confidence)
    num_resamples = require.whole("num_resamples", num_resamples, 1)
    columns, place = np.unique(np.hstack((above, below)), axis=1, return_inverse=True)  # quotients may share some
    totals = resampled_totals(columns, len(columns), num_resamples, rng)
    resampled_above, resampled_below = np.hsplit(totals[:, place.ravel()], 2)
    is_zero = resampled_below <= 0
    quotients = np.where(is_zero, np.inf, resampled_above / np.where(is_zero, 1, resampled_below))
    shares = ((1 - confidence) / 2, (1 + confidence) / 2)
    ends = np.quantile(quotients, shares, axis=0, method="nearest" if is_zero.any() else "linear").T
    values = above.sum(axis=0) / below.sum(axis=0)
    return [Estimate(float(value), float(low), float(high)) for value, (low, high) in zip(values, ends, strict=True)]


def _quotient(
    numerators: Floats, denominators: Floats, rng: np.random.Generator, num_resamples: int, confidence: float
) -> Estimate:
    """One quotient, of totals over questions."""
    (estimate,) = bootstrap_quotients(
        numerators[:, None], denominators[:, None], rng=rng, num_resamples=num_resamples, confidence=confidence
    )
    return estimate
