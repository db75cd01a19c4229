"""How well a signal seen early foretells the samples that a question needs.

Reference: Fu et al., "Efficiently Scaling LLM Reasoning with Certaindex", arXiv 2412.20993, the study of certaindex
against mean length, mean log-probability and their linear combination.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import kendalltau, pearsonr


class Correlation(NamedTuple):
    """Pearson's r and Kendall's tau-b; nan where a side does not vary."""

    pearson: float
    kendall: float


class LinearCombination(NamedTuple):
    """An intercept and a weight for each signal."""

    intercept: float
    weights: Mapping[str, float]

    def predict(self, signals: Mapping[str, Sequence[float]]) -> npt.NDArray[np.float64]:
        """The combination of the signals, shape [num_questions]."""
        columns = np.column_stack([np.asarray(signals[name], dtype=np.float64) for name in self.weights])
        combined: npt.NDArray[np.float64] = self.intercept + columns @ np.array(list(self.weights.values()))
        return combined


def correlation(signal: Sequence[float], needed: Sequence[float]) -> Correlation:
    """Correlate a signal with the samples needed.

    Args:
        signal: One value a question, shape [num_questions], at least two.
        needed: Samples that each question needs, shape [num_questions].

    Raises:
        ValueError: The lengths differ, or there are fewer than two questions.
    """
    if len(signal) != len(needed) or len(signal) < 2:
        raise ValueError(f"{len(signal)} signals for {len(needed)} questions; give one a question, two at least")
    if np.ptp(signal) == 0 or np.ptp(needed) == 0:
        return Correlation(math.nan, math.nan)
    return Correlation(float(pearsonr(signal, needed).statistic), float(kendalltau(signal, needed).statistic))


def fit_combination(signals: Mapping[str, Sequence[float]], needed: Sequence[float]) -> LinearCombination:
    """Least squares of the samples needed on the signals; of equal fits the one with the smallest weights.

    Args:
        signals: By name, one value a question, each of shape [num_questions].
        needed: Samples that each question needs, shape [num_questions].

    Raises:
        ValueError: There is no signal, or the lengths differ.
    """
    if not signals or any(len(values) != len(needed) for values in signals.values()):
        raise ValueError(f"signals of {[len(v) for v in signals.values()]} values for {len(needed)} questions")
    columns = np.column_stack([np.asarray(values, dtype=float) for values in signals.values()])
    means, scales = columns.mean(axis=0), columns.std(axis=0)
    scales[scales == 0] = 1.0
    target = np.asarray(needed, dtype=float)
    solution = np.linalg.lstsq((columns - means) / scales, target - target.mean(), rcond=None)[0] / scales
    intercept = float(target.mean() - means @ solution)
    return LinearCombination(intercept, {name: float(w) for name, w in zip(signals, solution, strict=True)})
