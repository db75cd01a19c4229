"""Projected Newton: quadratic at the end, at a cost linear in the types, since J's Hessian is diagonal plus rank two.

To prefer at heavy load, where prices swing so much that the fixed point and the gradient take many damped steps.

Reference: Bertsekas, "Projected Newton methods for optimization problems with simple constraints", 1982.
"""

from __future__ import annotations

import numpy as np

from scaffolding_ext.controllers.budgets.queueing.line_search import climb
from scaffolding_ext.controllers.budgets.queueing.model import curvature, gradient, kkt_residual
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats, Mix


def projected_newton(mix: Mix, start: Floats, *, tolerance: float = 1e-10, max_steps: int = 200) -> Floats:
    """Newton's steps among the budgets that no bound holds; arguments as in `fixed_point`."""
    budgets = start
    for _ in range(max_steps):
        if kkt_residual(mix, budgets) <= tolerance:
            break
        slope, curve = gradient(mix, budgets), curvature(mix, budgets)
        near = np.minimum(1e-6 / mix.b, mix.max_tokens / 4)
        held = ((budgets <= near) & (slope < 0)) | ((budgets >= mix.max_tokens - near) & (slope > 0))
        direction = np.where(held, slope / curve.diagonal, curve.solve(slope, ~held))
        budgets, step = climb(mix, budgets, direction)
        if not step:
            break
    return budgets
