"""Whether conformal p-values keep their promise: uniformity, and the realised rate with its intervals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from scaffolding_ext import require
from scaffolding_ext.controllers.draft_target.p_values import Ties, threshold_rank
from scaffolding_ext.stats.intervals import Estimate, Interval, paired_bootstrap, wilson_interval
from scaffolding_ext.stats.resampling import checked_values, critical_value


class Rate(NamedTuple):
    """A realised rate.

    Attributes:
        rate: Share of the decisions that fired.
        num_decisions: Decisions.
        binomial: Wilson's interval, for decisions that are independent.
        clustered: Interval from resampling whole questions; None without questions.
    """

    rate: float
    num_decisions: int
    binomial: Interval
    clustered: Interval | None


def realised_rate(
    fired: npt.ArrayLike,
    questions: npt.ArrayLike | None = None,
    *,
    rng: np.random.Generator | None = None,
    num_resamples: int = 2_000,
    confidence: float = 0.95,
) -> Rate:
    """The share of decisions that fired, with its intervals.

    Args:
        fired: Whether each decision fired, shape [num_decisions], booleans or 0 and 1.
        questions: Question of each decision, shape [num_decisions]. Scores of one question are alike, so the binomial
            interval is too narrow; with questions there is a clustered one beside it.
        rng: Source of the resamples; needed with `questions`.
        num_resamples: Bootstrap resamples.
        confidence: Nominal coverage of both intervals, in (0, 1).

    Raises:
        ValueError: If an entry is neither 0 nor 1, `questions` are malformed or come without `rng`, or a setting is out
            of range.
    """
    values = checked_values("fired", fired)
    if not np.isin(values, (0.0, 1.0)).all():
        raise ValueError("fired has an entry that is neither 0 nor 1; give the decisions, not the p-values.")
    binomial = wilson_interval(int(values.sum()), len(values), confidence)
    clustered = None
    if questions is not None:
        if rng is None:
            raise ValueError("questions come without rng; pass a numpy generator for the bootstrap.")
        estimate: Estimate = paired_bootstrap(
            values, np.zeros_like(values), questions, rng=rng, num_resamples=num_resamples, confidence=confidence
        )
        clustered = Interval(estimate.low, estimate.high)
    return Rate(float(values.mean()), len(values), binomial, clustered)


def uniformity_p_value(p_values: npt.ArrayLike, ties: Ties) -> float:
    """Kolmogorov-Smirnov test that p-values are what they claim: uniform with random ties, else not below uniform.

    Args:
        p_values: Independent p-values, each with a calibration set of its own, shape [num_p_values]. P-values that
            share one are dependent, and the test would reject too often: see `rate_interval`.
        ties: How they were computed. Random ties are tested on both sides, conservative ones on the side that matters:
            whether small p-values are too frequent.

    Returns:
        The test's own p-value; a small one is evidence against the claim.

    Raises:
        ValueError: If `p_values` are malformed or outside [0, 1].
    """
    values = checked_values("p_values", p_values)
    if values.min() < 0 or values.max() > 1:
        raise ValueError(f"p_values reach from {values.min()} to {values.max()}; they must lie in [0, 1].")
    return float(stats.kstest(values, "uniform", alternative="two-sided" if ties == "random" else "greater").pvalue)


def rate_interval(num_calibration: int, num_decisions: int, alpha: float, confidence: float = 0.95) -> Interval:
    """Where the rate of many decisions on one calibration set lies, if scores are exchangeable and never tie.

    One calibration set is drawn once, so its luck stays: the rate follows a beta-binomial law, wider than the binomial.
    Where scores of one question are alike it is wider still.

    Args:
        num_calibration: Calibration scores, at least 1.
        num_decisions: Decisions, at least 1.
        alpha: Level, in [0, 1].
        confidence: Probability of the interval, in (0, 1).

    Raises:
        ValueError: If a setting is out of range.

    Reference:
        Vovk, "Conditional validity of inductive conformal predictors", ACML 2012, proposition 2.
    """
    critical_value(confidence)  # checks it
    num_calibration = require.whole("num_calibration", num_calibration, 1)
    num_decisions = require.whole("num_decisions", num_decisions, 1)
    rank = threshold_rank(num_calibration, alpha)
    if rank == 0 or rank > num_calibration:
        certain = float(rank > 0)
        return Interval(certain, certain)
    law = stats.betabinom(num_decisions, rank, num_calibration + 1 - rank)
    low, high = law.ppf([(1 - confidence) / 2, (1 + confidence) / 2]) / num_decisions
    return Interval(float(low), float(high))
