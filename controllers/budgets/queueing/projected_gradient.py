"""Projected gradient: the plainest ascent, with backtracking inside the stable region, or with a constant step.

Reference: arXiv 2601.10274, the projected gradient with a bounded step (eq. 38).
Deviation: `constant_step` is our own bound. Like the paper's it needs that even the largest budgets can be served,
which the paper's own example does not meet (its load there is 41). Elsewhere steps are scaled by the diagonal
curvature, sized by the last one (Barzilai and Borwein), and halved until they gain.
"""

from __future__ import annotations

import numpy as np

from scaffolding_ext.controllers.budgets.queueing.line_search import climb, next_size
from scaffolding_ext.controllers.budgets.queueing.model import curvature, gradient, kkt_residual, moments
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats, Mix


def constant_step(mix: Mix) -> float | None:
    """A step with which plain projected gradient ascent converges; None where the largest budgets cannot be served.

    It is 1 / L. L bounds the Hessian's largest eigenvalue over all budgets: each term grows with them but the one of
    accuracy, which is largest at 0.
    """
    largest = np.full(len(mix.pi), float(mix.max_tokens))
    if mix.arrival_rate * float(moments(mix, largest).first) >= 1:
        return None
    curve = curvature(mix, largest)
    of_queue = np.max(curve.diagonal) + np.linalg.norm(curve.U @ curve.inner @ curve.U.T, 2)
    return float(1 / (np.max(mix.pi * mix.alpha * mix.A * mix.b**2) + of_queue))


def projected_gradient(
    mix: Mix, start: Floats, *, tolerance: float = 1e-10, max_steps: int = 20_000, step: float | None = None
) -> Floats:
    """Steps along the gradient, cut at the bounds.

    Args:
        mix: The types.
        start: Budgets inside the stable region.
        tolerance: KKT residual that is small enough.
        max_steps: Then it ends where it is.
        step: The same for every type and turn, such as `constant_step`; None scales and backtracks.
    """
    budgets, size = start, 1.0
    for _ in range(max_steps):
        if kkt_residual(mix, budgets) <= tolerance:
            break
        slope = gradient(mix, budgets)
        if step is not None:
            budgets = np.clip(budgets + step * slope, 0, mix.max_tokens)
            continue
        before = budgets
        budgets, taken = climb(mix, budgets, slope / curvature(mix, budgets).diagonal, size)
        if not taken:
            break
        size = next_size(mix, before, budgets)
    return budgets
