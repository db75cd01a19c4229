"""The projected fixed point: where marginal gain meets marginal cost, by Lambert's W.

With the prices of service held, each type's budget has a closed form; prices follow from budgets, and so on. The
paper's condition for this to contract does not hold (its constant is never below 1), so each step is damped until it
gains: the step leads uphill, since the closed form maximises a concave function with the gradient of J.

Reference: arXiv 2601.10274, the coupled projected fixed point.
Deviation: W is taken in the log domain (exp overflows at the budgets of reasoning models), and steps are damped:
    sized by the last one, and halved until they gain.
"""

from __future__ import annotations

import numpy as np
from scipy.special import wrightomega

from scaffolding_ext.controllers.budgets.queueing.line_search import climb, next_size
from scaffolding_ext.controllers.budgets.queueing.model import kkt_residual, prices
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats, Mix

_POLISH = 3


def best_responses(mix: Mix, base: float, slope: float) -> Floats:
    """The budgets within bounds at which gain meets cost, if a second costs a type `base + slope t`.

    At y = b l the equation alpha A b exp(-y) = c (base + slope (t0 + c l)) is y + log(1 + y / q) = r, with
    q = b (base + slope t0) / (slope c) and r the logarithm of gain by cost at l = 0. In w = q + y it is
    w + log w = q + log q + r: w is Lambert's W of the exponential of that, which is Wright's omega. Where q is large
    the difference w - q has few digits left; Newton's steps on y, which only underestimate, restore them.
    """
    at_zero = base + slope * mix.t0
    q = mix.b * at_zero / (slope * mix.c)
    with np.errstate(divide="ignore"):
        r = np.log(mix.alpha * mix.A * mix.b) - np.log(mix.c * at_zero)
    positive = r > 0
    q, r = np.where(positive, q, 1.0), np.where(positive, r, 0.0)
    y = np.clip(np.real(wrightomega(q + np.log(q) + r)) - q, 0, r)
    for _ in range(_POLISH):
        y = np.maximum(y - (y + np.log1p(y / q) - r) / (1 + 1 / (q + y)), 0)
    return np.where(positive, np.minimum(y / mix.b, mix.max_tokens), 0.0)


def fixed_point(mix: Mix, start: Floats, *, tolerance: float = 1e-10, max_steps: int = 200) -> Floats:
    """Go to the best responses to the present prices, damped, until the KKT residual is below the tolerance.

    Args:
        mix: The types.
        start: Budgets inside the stable region.
        tolerance: KKT residual that is small enough.
        max_steps: Then it ends where it is.
    """
    budgets, size = start, 1.0
    for _ in range(max_steps):
        if kkt_residual(mix, budgets) <= tolerance:
            break
        before = budgets
        budgets, taken = climb(mix, budgets, best_responses(mix, *prices(mix, budgets)) - budgets, size)
        if not taken:
            break
        size = next_size(mix, before, budgets)
    return budgets
