"""Adaptive conformal inference: a level that moves so that the realised rate stays at its target under drift."""

from __future__ import annotations

import numpy as np

from scaffolding_ext import require

_NUM_CELLS = 1024  # cells of [0, 1] in which regret counts the p-values


class AdaptiveLevel:
    """Level of the next decision, stepped by the error of the last one.

    `level += step_len * (alpha - fired)`. After n decisions the realised rate is within `rate_bound` of `alpha`, for
    any scores. The level may leave [0, 1]: below 0 nothing fires, above 1 everything does, which brings it back.

    Args:
        alpha: Target rate, in (0, 1).
        step_len: Step, above 0; larger steps follow drift faster and scatter more. The paper uses 0.005.

    Reference: Gibbs, Candès, "Adaptive Conformal Inference Under Distribution Shift", NeurIPS 2021, equation 2 and
        proposition 4.1.
    """

    def __init__(self, alpha: float, step_len: float = 0.005) -> None:
        self.alpha = self.level = require.number("alpha", alpha, above=0, below=1)
        self.step_len = require.number("step_len", step_len, above=0)
        self.num_decisions = 0
        self.num_fired = 0
        self._loss = 0.0  # of the levels used
        self._counts = np.zeros(_NUM_CELLS, dtype=np.int64)  # p-values in each cell
        self._sums = np.zeros(_NUM_CELLS)  # and their sum

    def decide(self, p_value: float) -> bool:
        """Return True if the decision fires, `p_value <= level`, and step the level by the outcome."""
        fired = p_value <= self.level
        self.num_decisions += 1
        self.num_fired += fired
        self._loss += max(self.alpha * (p_value - self.level), (self.alpha - 1) * (p_value - self.level))
        cell = min(_NUM_CELLS - 1, max(0, int(p_value * _NUM_CELLS)))
        self._counts[cell] += 1
        self._sums[cell] += p_value
        self.level += self.step_len * (self.alpha - fired)
        return fired

    @property
    def rate(self) -> float:
        """Share of decisions that fired; `alpha` before the first."""
        return self.num_fired / self.num_decisions if self.num_decisions else self.alpha

    @property
    def rate_bound(self) -> float:
        """Largest possible distance of `rate` from `alpha` after this many decisions, for any scores.

        Reference: Gibbs, Candès 2021, proposition 4.1: `(max(alpha, 1 - alpha) + step_len) / (n * step_len)`.
        """
        if not self.num_decisions:
            return 1.0
        return (max(self.alpha, 1 - self.alpha) + self.step_len) / (self.num_decisions * self.step_len)

    def regret(self) -> float:
        """Return the summed pinball loss of the levels used, minus that of the best fixed level in hindsight.

        The best level is sought among multiples of 1/1024, which understates regret by at most 1/1024 per p-value in
        the cell of the true best. The steps are subgradient descent on the pinball loss of the level against the
        p-value, so with `d` the distance of the first level from the best one, regret is at most `d ** 2 / (2 *
        step_len) + n * step_len * max(alpha, 1 - alpha) ** 2 / 2`.

        Reference: Gibbs, Candès, "Conformal Inference for Online Prediction with Arbitrary Distribution Shifts", JMLR
            2024, equation 3, for the loss; Zinkevich, ICML 2003, theorem 1, for the bound.
        """
        edges = np.arange(_NUM_CELLS + 1) / _NUM_CELLS
        num_below = np.concatenate(([0], np.cumsum(self._counts)))
        sum_below = np.concatenate(([0.0], np.cumsum(self._sums)))
        num_above, sum_above = self.num_decisions - num_below, sum_below[-1] - sum_below
        losses = self.alpha * (sum_above - num_above * edges) + (1 - self.alpha) * (num_below * edges - sum_below)
        return float(self._loss - losses.min())
