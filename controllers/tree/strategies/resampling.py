"""Resampling of particles in proportion to their weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from scaffolding_ext.controllers.tree.strategies.base import softmax

Resampling = Literal["systematic", "multinomial"]


def resampled(weights: Sequence[float], count: int, resampling: Resampling, rng: np.random.Generator) -> list[int]:
    """Indices of the particles that continue, in ascending order with repeats; `weights` sum to 1."""
    if resampling == "multinomial":
        return sorted(rng.choice(len(weights), size=count, p=weights).tolist())
    positions = (rng.random() + np.arange(count)) / max(1, count)
    drawn: list[int] = np.minimum(
        np.searchsorted(np.cumsum(weights), positions, side="right"), len(weights) - 1
    ).tolist()
    return drawn


def tempered(logs: Sequence[float], below: float, progress: float) -> list[float]:
    """Normalized weights, flattened while few particles dominate.

    Args:
        logs: Log-weights of the particles.
        below: Effective sample size, as a share of the particles, below which weights are flattened.
        progress: Completed share of the levels; from one half on nothing is flattened.
    """
    weights = softmax(logs)
    share = 1 / math.fsum(weight * weight for weight in weights) / len(weights)
    if share < below and progress < 0.5:
        return softmax(logs, max(1.0, (1 - progress) / share))
    return weights
