"""Draws settings that were played on the same questions: points against a reference, and what each setting costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext.evaluation.drawing import COLOURS, bars_of, coloured, point
from scaffolding_ext.stats.intervals import Estimate, bootstrap_quotients

Floats = npt.NDArray[np.float64]
_MOST_INTERVALS = 4  # of a line: more would hide each other


class Played(NamedTuple):
    """What a setting came to.

    Attributes:
        right: Share of right answers to each question, shape [num_questions].
        cost: Of each question, shape [num_questions].
    """

    right: Floats
    cost: Floats


class Place(NamedTuple):
    """Where a setting stands in the picture.

    Attributes:
        cost: Percent of the reference's cost; the mean cost itself where the reference costs nothing.
        points: Right answers above the reference, in percentage points.
    """

    cost: Estimate
    points: Estimate


def places(played: Sequence[Played], reference: Played) -> list[Place]:
    """Where settings stand, with 95 % intervals, paired: whole questions are resampled; one question has no interval.

    Args:
        played: The settings.
        reference: What they are compared with, on the same questions.
    """
    ones = np.ones(len(reference.right))
    is_share = _is_share(reference)
    base = reference.cost if is_share else ones
    costs = [each.cost * (100 if is_share else 1) for each in played]
    above = np.column_stack([*costs, *(100 * (each.right - reference.right) for each in played)])
    below = np.column_stack([base] * len(played) + [ones] * len(played))
    if len(ones) > 1:
        found = bootstrap_quotients(above, below, rng=np.random.default_rng(0))
    else:
        found = [Estimate(value, value, value) for value in (above.sum(axis=0) / below.sum(axis=0)).tolist()]
    return [Place(*pair) for pair in zip(found[: len(played)], found[len(played) :], strict=True)]


def draw_families(axes: Any, families: Mapping[str, Sequence[Played]], reference: Played) -> None:
    """Draw a line through each family's settings that no cheaper one of it beats; some of its points have intervals.

    Args:
        axes: Where.
        families: The settings of each, at least one.
        reference: As `places` takes it; a dashed line is at its accuracy.
    """
    axes.axhline(0, color="0.5", linestyle="--", lw=0.8)
    for number, (name, played) in enumerate(families.items()):
        shape = {"fmt": "o", **coloured(number)}
        scale = 100 / float(reference.cost.mean()) if _is_share(reference) else 1.0
        means = [
            (scale * float(each.cost.mean()), 100 * float((each.right - reference.right).mean())) for each in played
        ]
        kept = _frontier(means)
        axes.plot(*zip(*means, strict=True), ".", color=shape["color"], alpha=0.25, ms=3)
        line = "-" if number < len(COLOURS) else "--"
        axes.plot(*zip(*(means[index] for index in kept), strict=True), line, color=shape["color"], lw=1)
        shown = np.unique(np.linspace(0, len(kept) - 1, _MOST_INTERVALS).round().astype(int))
        estimates = places([played[kept[index]] for index in shown], reference)
        costs, points = [each.cost for each in estimates], [each.points for each in estimates]
        bars = {"xerr": bars_of(costs), "yerr": bars_of(points), "elinewidth": 0.6, "capsize": 2}
        axes.errorbar([x.value for x in costs], [y.value for y in points], label=name, ms=4, **bars, **shape)
    axes.plot([], [], ".", color="0.5", ms=3, label="dots: all settings, without intervals")


def mark(axes: Any, played: Played, reference: Played, name: str, *, is_default: bool = False) -> None:
    """Draw a setting in black with its intervals: by its name, or as the default in its ring."""
    (place,) = places([played], reference)
    shape: dict[str, Any] = {"fmt": "o", "ms": 3, "label": None} if is_default else {"fmt": "D", "ms": 8, "mfc": "none"}
    point(axes, *place, name, color="black", zorder=4, is_default=is_default, **shape)


def cost_label(name: str, reference: Played, whose: str) -> str:
    """Label of the axis of costs.

    Args:
        name: Of the cost.
        reference: As `places` takes it.
        whose: The reference's name, as "the full vote's".
    """
    return f"{name}, % of {whose}" if _is_share(reference) else name


def _is_share(reference: Played) -> bool:
    return float(reference.cost.sum()) > 0


def _frontier(means: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the settings that are better than every cheaper one, in the order of their cost."""
    kept: list[int] = []
    for index in sorted(range(len(means)), key=lambda index: (means[index][0], -means[index][1])):
        if not kept or means[index][1] > means[kept[-1]][1]:
            kept.append(index)
    return kept
