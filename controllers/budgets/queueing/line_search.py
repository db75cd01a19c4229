"""A step that stays inside bounds and the stable region and always gains: what makes every solver safe."""

from __future__ import annotations

import numpy as np

from scaffolding_ext.controllers.budgets.queueing.model import curvature, gradient, objective
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats, Mix

_GAIN = 1e-4  # share of the gain that the gradient promises
_SHORTEST = 2.0**-60


def climb(mix: Mix, budgets: Floats, direction: Floats, step: float = 1.0) -> tuple[Floats, float]:
    """The budgets after a step along a direction, halved until J gains; budgets are cut at their bounds.

    Returns:
        The new budgets and the step; the old ones and 0 where no step gains, at the precision of the numbers.
    """
    value, slope = float(objective(mix, budgets)), gradient(mix, budgets)
    rounding = 8 * np.finfo(float).eps * (abs(value) + mix.alpha)  # below it gains cannot be seen
    while step > _SHORTEST:
        tried = np.clip(budgets + step * direction, 0, mix.max_tokens)
        promised = float(slope @ (tried - budgets))
        reached = float(objective(mix, tried))
        lost_to_rounding = rounding if promised < rounding else 0.0
        if promised > 0 and reached >= value + _GAIN * promised - lost_to_rounding:
            return tried, step
        step /= 2
    return budgets, 0.0


def next_size(mix: Mix, before: Floats, after: Floats) -> float:
    """How long the next step along a direction that the diagonal curvature scales should be, by the bend of the last.

    Reference: Barzilai and Borwein, "Two-point step size gradient methods", 1988.
    """
    moved = after - before
    bent = float(moved @ (gradient(mix, before) - gradient(mix, after)))
    scaled = float(moved @ (curvature(mix, before).diagonal * moved))
    return min(max(scaled / bent, 1e-8), 1e8) if bent > 0 else 1.0
