"""Conformal p-values: how strange a score is among calibration scores.

Scores are nonconformity scores: higher is stranger. A decision that fires if `p <= alpha` fires with probability at
most `alpha` if the new score is exchangeable with the calibration scores. This holds for a single decision, not for
several jointly.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from scaffolding_ext import require
from scaffolding_ext.stats.resampling import Floats, Integers, checked_values

Ties = Literal["conservative", "random"]


class Ranks(NamedTuple):
    """Ranks of scores among calibration scores, as counts, so that nothing is rounded.

    Attributes:
        num_greater: Calibration scores above each score, shape [num_scores].
        num_equal: Calibration scores equal to it, shape [num_scores].
    """

    num_greater: Integers
    num_equal: Integers
    num_calibration: int

    def p_values(self, ties: Ties = "conservative", rng: np.random.Generator | None = None) -> Floats:
        """Return the p-values of these ranks, as the function `p_values` does."""
        check_ties(ties, rng)
        if rng is None or ties == "conservative":
            return (1 + self.num_greater + self.num_equal) / (self.num_calibration + 1)
        above_zero = 1 - rng.random(len(self.num_greater))  # (0, 1]: at a level of 0 nothing may fire
        return (self.num_greater + above_zero * (1 + self.num_equal)) / (self.num_calibration + 1)


def p_values(
    calibration: npt.ArrayLike,
    scores: npt.ArrayLike,
    ties: Ties = "conservative",
    rng: np.random.Generator | None = None,
) -> Floats:
    """Conformal p-value of each score: the share of calibration scores, including itself, that are at least as strange.

    Conservative: `(1 + #{calibration >= score}) / (num_calibration + 1)`; it is at most `alpha` with probability at
    most `alpha`. Random: `(#{calibration > score} + U * (1 + #{calibration == score})) / (num_calibration + 1)` with U
    uniform; it is uniform itself, so it is at most `alpha` with probability exactly `alpha`, even with ties.

    Args:
        calibration: Nonconformity scores, shape [num_calibration], finite, at least one.
        scores: New scores, shape [num_scores], finite.
        ties: Treatment of ties.
        rng: Source of U, one draw per score; required for random ties and otherwise unused.

    Returns:
        The p-values, shape [num_scores], in (0, 1].

    Reference: Vovk, Gammerman, Shafer, "Algorithmic Learning in a Random World", 2005, section 2.2, both kinds; A1,
        equation 12, for its application.

    Deviation: A1's equations 12 and 28 use opposite inequalities. Ours is that of equation 12, which is right for a
        nonconformity score; that of equation 28 is right for a conformity score. Its released code omits the 1 that
        counts the score itself, without which the guarantee fails.
    """
    ordered = np.sort(checked_values("calibration", calibration))
    values = checked_values("scores", scores)
    num_at_most = np.searchsorted(ordered, values, side="right")
    num_below = np.searchsorted(ordered, values, side="left")
    return Ranks(len(ordered) - num_at_most, num_at_most - num_below, len(ordered)).p_values(ties, rng)


def leave_one_out_p_values(
    scores: npt.ArrayLike, ties: Ties = "conservative", rng: np.random.Generator | None = None
) -> Floats:
    """P-value of each score among the others, for scores that are their own calibration.

    The first drafts of a question are both calibration scores and candidates. Ranked in a pool that contains it, a
    candidate would tie with itself, and its p-value could not fall below `2 / (num_scores + 1)`.

    Args:
        scores: Nonconformity scores, shape [num_scores], finite, at least one. The p-value of a single one is 1, or
            uniform with random ties.

    Returns:
        The p-values, shape [num_scores], in (0, 1].
    """
    values = checked_values("scores", scores)
    ordered = np.sort(values)
    num_at_most = np.searchsorted(ordered, values, side="right")
    num_below = np.searchsorted(ordered, values, side="left")
    return Ranks(len(values) - num_at_most, num_at_most - num_below - 1, len(values) - 1).p_values(ties, rng)


def check_ties(ties: Ties, rng: np.random.Generator | None) -> None:
    """Raise ValueError if `ties` is unknown, or random without a generator."""
    require.one_of("ties", ties, get_args(Ties))
    if ties == "random" and rng is None:
        raise ValueError("ties is 'random' without rng; pass a numpy generator, or choose conservative ties.")
