"""Whole budgets out of the optimum's fractions; each result can be served.

Reference: arXiv 2601.10274, eq. 39 (the best of all roundings up and down); the nearest whole budgets are
beside it to compare.
Deviation: the paper's bound of the loss, eq. 41, mixes units; the loss is known exactly here, and reported. Stability
is checked again, since rounding up can pass it.
"""

from __future__ import annotations

import numpy as np

from scaffolding_ext.controllers.budgets.queueing.model import (
    Moments,
    accuracies,
    moments,
    objective,
    pollaczek_khinchine,
    service_times,
)
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats, Mix

MAX_ENUMERATED = 16  # types with a fraction: 65,536 roundings


def nearest(mix: Mix, budgets: Floats) -> Floats:
    """Each budget at the nearest whole number; all of them down where that cannot be served."""
    rounded = np.clip(np.rint(budgets), 0, np.floor(mix.max_tokens))
    return rounded if np.isfinite(objective(mix, rounded)) else np.floor(budgets)


def enumerated(mix: Mix, budgets: Floats) -> Floats:
    """The best of all 2^N ways to round up or down; N counts the budgets that have a fraction."""
    low = np.floor(budgets)
    loose = np.flatnonzero((budgets > low) & (low + 1 <= mix.max_tokens))
    ways = (np.arange(2 ** len(loose))[:, None] >> np.arange(len(loose))) & 1
    tried = np.tile(low, (len(ways), 1))
    tried[:, loose] += ways
    return np.asarray(tried[np.argmax(objective(mix, tried))])


def coordinate_search(mix: Mix, budgets: Floats) -> Floats:
    """From the nearest whole budgets, the one token more or less that gains most, as long as one gains.

    A move changes one term of each sum, so that all moves are compared in time linear in the types.
    """
    whole = nearest(mix, budgets)
    best = float(objective(mix, whole))
    while True:
        right, seconds, of = accuracies(mix, whole), service_times(mix, whole), moments(mix, whole)
        tried = whole + np.array([[1.0], [-1.0]])
        others = service_times(mix, tried)
        changed = Moments(of.first + mix.pi * (others - seconds), of.second + mix.pi * (others**2 - seconds**2))
        gain = mix.alpha * (right @ mix.pi + mix.pi * (accuracies(mix, tried) - right))
        values = gain - pollaczek_khinchine(mix.arrival_rate, changed)
        values[(tried < 0) | (tried > mix.max_tokens)] = -np.inf
        way, kind = np.unravel_index(int(np.argmax(values)), values.shape)
        moved = whole.copy()
        moved[kind] = tried[way, kind]
        reached = float(objective(mix, moved))
        if reached <= best:
            return whole
        whole, best = moved, reached


def rounded(mix: Mix, budgets: Floats) -> Floats:
    """Whole budgets: the best rounding of few types, a coordinate search with many."""
    fractions = int(np.count_nonzero(budgets % 1))
    return enumerated(mix, budgets) if fractions <= MAX_ENUMERATED else coordinate_search(mix, budgets)
