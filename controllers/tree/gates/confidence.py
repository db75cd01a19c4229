"""How sure a model was of its own branches. A gate decides by it, without a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scaffolding_ext import require


@dataclass(frozen=True)
class ConfidenceGate:
    """Whether the model is so much surer of one branch than of all others that no branch needs a verdict.

    Args:
        least: Least confidence of the surest branch, in [0, 1].
        gap: Its least lead over the next branch, as a share of its own confidence, in [0, 1].

    Raises:
        ValueError: One is outside its range.

    Reference:
        RKSC, equation 4 (0.70 and 0.06, on whole branches: the verdict is skipped), and the exit while branches are
        decoded (0.72 and 0.10, after 3 steps: the others end).

    Deviation:
        The released code takes an absolute gap in some places; the paper's is relative.
    """

    least: float = 0.70
    gap: float = 0.06

    def __post_init__(self) -> None:
        require.number("least", self.least, least=0, most=1)
        require.number("gap", self.gap, least=0, most=1)

    def leader(self, confidences: Sequence[float]) -> int | None:
        """The branch that passes the gate; None where no branch passes. A single branch needs no lead."""
        if not confidences:
            return None
        best = max(range(len(confidences)), key=confidences.__getitem__)
        passes = confidences[best] >= self.least and relative_gap(confidences) >= self.gap
        return best if passes else None


def relative_gap(confidences: Sequence[float]) -> float:
    """The lead of the highest confidence over the next, as a share of the highest: 1 without a next, 0 where all are 0.

    Raises:
        ValueError: There is no confidence.
    """
    if not confidences:
        raise ValueError("there are no confidences; give one a branch")
    best, *rest = sorted(confidences, reverse=True)
    if not rest:
        return 1.0
    return (best - rest[0]) / best if best > 0 else 0.0


def fit_gate(confidences: Sequence[Sequence[float]]) -> ConfidenceGate:
    """The gate of a calibration: the 75th percentile of the highest confidences, the 25th of the relative gaps.

    Args:
        confidences: Those of the branches of each problem, at least one problem, each with at least one branch.

    Raises:
        ValueError: There is no problem.

    Reference:
        RKSC, calibration of the skip gate.
    """
    if not confidences:
        raise ValueError("there are no problems to fit a gate to; give at least one")
    highest: npt.NDArray[np.float64] = np.array([max(each) for each in confidences])
    gaps = np.array([relative_gap(each) for each in confidences])
    return ConfidenceGate(float(np.percentile(highest, 75)), float(np.percentile(gaps, 25)))
