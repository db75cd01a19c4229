"""Whole budgets from the optimum's fractional ones, and the largest loss of rounding.

Reference: Ozbas and Bastopcu, arXiv 2601.10274, eq. 39 (`best`), 40 (`nearest`) and 41 (`lower_bound`).
Deviation: The load is checked again, since rounding up can exceed what can be served.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scaffolding_ext.controllers.budgets.queueing.model import moments
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats, Mix

MAX_ENUMERATED = 16  # fractional budgets: 65,536 roundings
Worth = Callable[[Floats], Floats]  # of budgets [..., num_types]; minus infinity if not servable
# Worth after adding `step` tokens to one budget, for each type in turn; shape [num_types].
WorthOfSteps = Callable[[Floats, float], Floats]


def nearest(worth: Worth, budgets: Floats, max_tokens: float, steps: WorthOfSteps | None = None) -> Floats:
    """Round each budget to the nearest whole number (eq. 40), or all down if the result cannot be served."""
    rounded = np.clip(np.rint(budgets), 0, np.floor(max_tokens))
    return rounded if np.isfinite(worth(rounded)) else np.floor(budgets)


def best(worth: Worth, budgets: Floats, max_tokens: float, steps: WorthOfSteps | None = None) -> Floats:
    """Best of all roundings up or down (eq. 39); a coordinate search beyond 16 fractional budgets."""
    low = np.floor(budgets)
    loose = np.flatnonzero((budgets > low) & (low + 1 <= max_tokens))
    if len(loose) > MAX_ENUMERATED:
        return coordinate_search(worth, budgets, max_tokens, steps)
    ways = (np.arange(2 ** len(loose))[:, None] >> np.arange(len(loose))) & 1
    tried = np.tile(low, (len(ways), 1))
    tried[:, loose] += ways
    return np.asarray(tried[np.argmax(worth(tried))])


def coordinate_search(worth: Worth, budgets: Floats, max_tokens: float, steps: WorthOfSteps | None = None) -> Floats:
    """From the nearest whole budgets, repeatedly take the best change by one token while it improves.

    Args:
        steps: Worth of each step; None calls `worth` for each, which is slow for many types.
    """
    whole = nearest(worth, budgets, max_tokens)
    reached = float(worth(whole))
    of_steps = steps or (lambda start, step: worth(start + step * np.eye(len(start))))
    while True:
        fits = np.stack([whole + 1 <= max_tokens, whole >= 1])
        values = np.where(fits, [of_steps(whole, 1.0), of_steps(whole, -1.0)], -np.inf)
        row, chosen = np.unravel_index(np.argmax(values), values.shape)
        tried = whole.copy()
        tried[chosen] += -1 if row else 1
        gained = float(worth(tried)) if fits[row, chosen] else -np.inf
        if gained <= reached:
            return whole
        whole, reached = tried, gained


Rounding = Callable[[Worth, Floats, float, "WorthOfSteps | None"], Floats]
ROUNDINGS: dict[str, Rounding] = {"best": best, "nearest": nearest}


def lower_bound(mix: Mix, budgets: Floats) -> Floats:
    """Lower bound on J over all roundings of budgets; NaN if rounding up may not be served.

    Accuracy is that of one token less. With c the largest of the types' seconds per token, rounding up adds at most c
    to E[S], and at most 2 c E[S] + c^2 to E[S^2]. The last term, -E[S], omits that c; the 2 c in the numerator makes up
    for it.

    Args:
        mix: The types.
        budgets: Budgets, shape [..., num_types].

    Reference: arXiv 2601.10274, eq. 41. The paper does not say that, or why, the last term may leave out c.
    """
    of, rate, longest = moments(mix, budgets), mix.arrival_rate, float(np.max(mix.c))
    less = mix.D - mix.A * np.expm1(-mix.b * (budgets - 1))
    slack = 1 - rate * (of.first + longest)
    waiting = (rate * of.second + 2 * longest) / (2 * np.where(slack > 0, slack, np.nan))
    return np.asarray(mix.alpha * (less @ mix.pi) - waiting - of.first)
