"""Drawing particles anew in proportion to their weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from scaffolding_ext.controllers.tree.strategies.base import softmax

Resampling = Literal["systematic", "multinomial"]


def resampled(weights: Sequence[float], count: int, resampling: Resampling, rng: np.random.Generator) -> list[int]:
    """Which particles go on, in rising order, some of them repeatedly; the sum of `weights` is 1."""
    if resampling == "multinomial":
        return sorted(rng.choice(len(weights), size=count, p=weights).tolist())
    positions = (rng.random() + np.arange(count)) / max(1, count)
    drawn: list[int] = np.minimum(
        np.searchsorted(np.cumsum(weights), positions, side="right"), len(weights) - 1
    ).tolist()
    return drawn


def tempered(logs: Sequence[float], below: float, progress: float) -> list[float]:
    """Weights in ratio to their sum, flattened while few particles count.

    Args:
        logs: Log-weights of the particles.
        below: Share of the particles, 1 / sum of squared weights, below which weights are flattened.
        progress: Share of the levels that is done; from half of them on nothing is flattened.
    """
    weights = softmax(logs)
    share = 1 / math.fsum(weight * weight for weight in weights) / len(weights)
    if share < below and progress < 0.5:
        return softmax(logs, max(1.0, (1 - progress) / share))
    return weights
