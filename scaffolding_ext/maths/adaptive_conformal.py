"""Adaptive conformal inference: a level that moves so that the realised rate stays at its target under drift."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class AdaptiveLevel:
    """The level of the next decision, stepped by the error of the last one.

    `level += step_len * (alpha - fired)`: a decision that fired lowers it, one that did not raises it. Whatever the
    scores do, after n decisions the realised rate is within `rate_bound` of `alpha`. The level may leave [0, 1]: below
    0 nothing fires and above 1 everything does, which is what brings it back.

    Args:
        alpha: Rate to keep, in (0, 1).
        step_len: Step, above 0; larger steps follow drift faster and scatter more. The paper uses 0.005.

    Raises:
        ValueError: A setting is out of range.

    Reference:
        Gibbs, Candès, "Adaptive Conformal Inference Under Distribution Shift", NeurIPS 2021, equation 2 and
        proposition 4.1.
    """

    alpha: float
    step_len: float = 0.005
    level: float = field(init=False)
    p_values: list[float] = field(init=False, default_factory=list)
    levels: list[float] = field(init=False, default_factory=list)
    num_fired: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha is {self.alpha}; a rate to keep must lie strictly between 0 and 1.")
        if not self.step_len > 0:
            raise ValueError(f"step_len is {self.step_len}; it must be above 0, for example 0.005.")
        self.level = self.alpha

    def decide(self, p_value: float) -> bool:
        """Whether the decision fires, `p_value <= level`; the level is stepped by the outcome."""
        fired = p_value <= self.level
        self.p_values.append(p_value)
        self.levels.append(self.level)
        self.num_fired += fired
        self.level += self.step_len * (self.alpha - fired)
        return fired

    @property
    def rate(self) -> float:
        """Share of the decisions so far that fired; `alpha` before the first."""
        return self.num_fired / len(self.p_values) if self.p_values else self.alpha

    @property
    def rate_bound(self) -> float:
        """Largest distance of `rate` from `alpha` that the steps allow after this many decisions, whatever the scores.

        Reference:
            Gibbs, Candès 2021, proposition 4.1: `(max(alpha, 1 - alpha) + step_len) / (n * step_len)`.
        """
        if not self.p_values:
            return 1.0
        return (max(self.alpha, 1 - self.alpha) + self.step_len) / (len(self.p_values) * self.step_len)

    def regret(self) -> float:
        """Summed pinball loss of the levels used, less that of the best single level in hindsight.

        The steps are subgradient descent on the pinball loss of the level against the p-value, so with `d` the distance
        of the first level from the best one the regret is at most
        `d ** 2 / (2 * step_len) + n * step_len * max(alpha, 1 - alpha) ** 2 / 2`.

        Reference:
            Gibbs, Candès, "Conformal Inference for Online Prediction with Arbitrary Distribution Shifts", JMLR 2024,
            equation 3, for the loss; Zinkevich, ICML 2003, theorem 1, for the bound.
        """
        if not self.p_values:
            return 0.0
        p = np.array(self.p_values)
        best = np.sort(p)[
            min(len(p) - 1, int(self.alpha * len(p)))
        ]  # a minimiser of the summed loss: an alpha-quantile
        return float(self._losses(p, np.array(self.levels)).sum() - self._losses(p, best).sum())

    def _losses(self, p: np.ndarray, level: np.ndarray | float) -> np.ndarray:
        return np.maximum(self.alpha * (p - level), (self.alpha - 1) * (p - level))
