"""Whether take-over rules keep their promise: the realised rate with its intervals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext.stats.intervals import Estimate, Interval, paired_bootstrap, wilson_interval
from scaffolding_ext.stats.resampling import checked_values


class Rate(NamedTuple):
    """A realised rate.

    Attributes:
        rate: Share of the decisions that fired.
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
