"""Exponential moving averages and their variance, and a threshold that rises with the length of a chain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scipy.special import expit

from scaffolding_ext import require


class Moving(NamedTuple):
    """An exponential moving average after the newest of some values.

    Attributes:
        mean: m_i = a x_i + (1 - a) m_(i-1), from m_0 = x_0 on.
        variance: v_i = a (x_i - m_i)^2 + (1 - a) v_(i-1), from v_0 = 0 on.
    """

    mean: float
    variance: float


def moving_average(values: Sequence[float], smoothing: float) -> Moving:
    """Mean and variance of an exponential moving average after all of the values.

    Args:
        values: Oldest first, at least one.
        smoothing: a, the newest value's weight, in (0, 1]; 1 keeps nothing of the others.

    Raises:
        ValueError: There are no values, or the smoothing is out of range.

    Reference:
        Wang et al., "Entropy After </Think>", arXiv 2509.26522, the stopping rule.
    """
    require.share("smoothing", smoothing)
    if not len(values):
        raise ValueError("there are no values; at least one is needed")
    mean, variance = values[0], 0.0
    for value in values[1:]:
        mean = smoothing * value + (1.0 - smoothing) * mean
        variance = smoothing * (value - mean) ** 2 + (1.0 - smoothing) * variance
    return Moving(mean, variance)


def rising_threshold(num_tokens: float, least: float, most: float, midpoint: float, steepness: float) -> float:
    """A logistic curve over the length of a chain: near `least` at first, near `most` in the end.

    Args:
        num_tokens: Length of the chain.
        least: What it begins near.
        most: What it rises to.
        midpoint: Tokens at which it is half way.
        steepness: Its rate, in 1 / token; 4 / steepness tokens take it from 12 to 88 % of its way.

    Reference:
        "Conformal Thinking: Risk Control for Reasoning on a Compute Budget", arXiv 2602.03814, the lower threshold.
    """
    return least + (most - least) * float(expit(steepness * (num_tokens - midpoint)))
