"""What an accuracy costs on a sweep: the cheapest mix of two points that reaches this accuracy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class CostAt(NamedTuple):
    """What an accuracy costs, one entry for each row of points.

    Attributes:
        cost: In the unit of the points' costs; infinite where no point is as accurate.
        interpolated: Whether it lies between two points; elsewhere it is the cheapest point's own cost, or infinite.
    """

    cost: npt.NDArray[np.float64]
    interpolated: npt.NDArray[np.bool_]


def cost_at_accuracy(accuracy: npt.ArrayLike, cost: npt.ArrayLike, wanted: npt.ArrayLike) -> CostAt:
    """The cost at which the frontier of some points reaches an accuracy, linear between neighbours.

    Points that are no more accurate than a cheaper one are not on the frontier. Answering each question at random by
    one of two neighbours has every accuracy and cost on the line between them, so that an interpolated figure can be
    had. Nothing is extrapolated: where the cheapest point is accurate enough, its own cost is taken.

    Args:
        accuracy: Of each point, shape [num_rows, num_points].
        cost: Of each point, shape [num_rows, num_points].
        wanted: The accuracy of each row, shape [num_rows].

    Raises:
        ValueError: If shapes do not fit.
    """
    levels, costs, goal = (np.asarray(values, dtype=np.float64) for values in (accuracy, cost, wanted))
    if levels.ndim != 2 or levels.shape != costs.shape or goal.shape != levels.shape[:1] or not levels.size:
        raise ValueError(
            f"accuracy has shape {levels.shape}, cost {costs.shape} and wanted {goal.shape}; give [num_rows, "
            "num_points] twice, and [num_rows]."
        )
    order = np.lexsort((-levels, costs), axis=-1)
    levels, costs = (np.take_along_axis(values, order, axis=1) for values in (levels, costs))
    best = np.maximum.accumulate(levels, axis=1)
    reaches = best >= goal[:, None]
    rows = np.arange(len(goal))
    first = np.argmax(reaches, axis=1)
    is_reached = reaches[rows, first]
    interpolated = is_reached & (first > 0)
    before = np.maximum(first - 1, 0)
    cheaper = np.argmax(levels == best[rows, before][:, None], axis=1)  # the cheapest of the best before
    low, high = best[rows, before], levels[rows, first]
    share = np.where(interpolated, (goal - low) / np.where(interpolated, high - low, 1), 1.0)
    between = costs[rows, cheaper] + share * (costs[rows, first] - costs[rows, cheaper])
    found = np.where(interpolated, between, costs[rows, first])
    return CostAt(np.where(is_reached, found, np.inf), interpolated)
