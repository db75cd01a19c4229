"""Exact test that current counts still come from the distribution seen during tuning, even with few distinct values.

Votes of few samples take few values (a vote of two agrees or not), so a test for continuous values cannot work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext import require

NUM_DRAWS = 9_999


class Drift(NamedTuple):
    """Result of an exact test that two sets of counts come from one distribution.

    Attributes:
        distance: Total variation distance between the two distributions, in [0, 1].
        p_value: Chance of a difference at least this large if nothing has changed.
        tuned_mean: Mean of the values seen during tuning.
        recent_mean: Mean of the recent values.
    """

    distance: float
    p_value: float
    tuned_mean: float
    recent_mean: float

    def __str__(self) -> str:
        return (
            f"{self.recent_mean:.2f} on average instead of {self.tuned_mean:.2f} (p = {self.p_value:.2g}, exact test)"
        )


def drift_between(
    tuned: Mapping[int, int], recent: Mapping[int, int], rng: np.random.Generator, num_draws: int = NUM_DRAWS
) -> Drift:
    """Permutation test of Pearson's statistic; exact in level, since the observed table is one of the draws.

    Args:
        tuned: Count of each value during tuning; at least one value.
        recent: Count of each value now; values of one question count once.

    Reference: Besag & Clifford, "Generalized Monte Carlo significance tests", Biometrika 1989.
    """
    require.whole("num_draws", num_draws)
    values = np.array(sorted({*tuned, *recent}))
    before, now = (np.array([side.get(value, 0) for value in values.tolist()]) for side in (tuned, recent))
    seen = before + now > 0
    values, before, now = values[seen], before[seen], now[seen]
    if not (before.sum() and now.sum()):
        raise ValueError(f"the counts are {dict(tuned)} and {dict(recent)}; each side needs a value")
    together = before + now
    expected = together * now.sum() / together.sum()

    def statistic(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return np.asarray(((counts - expected) ** 2 / expected).sum(axis=-1))

    drawn = rng.multivariate_hypergeometric(together, int(now.sum()), size=num_draws)
    num_as_far = int((statistic(drawn) >= statistic(now) - 1e-9).sum())
    shares = before / before.sum(), now / now.sum()
    return Drift(
        float(np.abs(shares[0] - shares[1]).sum() / 2),
        (1 + num_as_far) / (1 + num_draws),
        float(shares[0] @ values),
        float(shares[1] @ values),
    )
