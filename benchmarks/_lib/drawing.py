"""Pictures of studies, in the style of the package (`scaffolding_ext.evaluation.drawing`).

Studies take their pictures from the figures of a report, so that they are drawn again from a kept result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scaffolding_ext.evaluation.drawing import COLOURS, bars_of
from scaffolding_ext.stats.intervals import Estimate

Figures = Mapping[str, Mapping[str, Any]]
"""The figures of a report, or of a kept result."""


def of(figures: Figures, name: str, scale: float = 1.0) -> Estimate | None:
    """A figure by its name; None where there is none. The interval of a figure without one has no width."""
    figure = figures.get(name)
    if figure is None or figure["value"] is None:
        return None
    ends = (figure["value"] if figure[end] is None else figure[end] for end in Estimate._fields)
    return Estimate(*(scale * end for end in ends))


def coloured(number: int) -> dict[str, Any]:
    """Return the colour of a method by its number; beyond the palette, also a shape."""
    return {"color": f"C{number % len(COLOURS)}"} | ({"fmt": "^"} if number >= len(COLOURS) else {})


def points(axes: Any, xs: Sequence[float], ys: Sequence[Estimate], name: str | None = None, **options: Any) -> Any:
    """Draw a line of points with their intervals; return its colour."""
    options = {"fmt": "o-", "ms": 4, "elinewidth": 1.0} | options
    bars = axes.errorbar(xs, [y.value for y in ys], yerr=bars_of(ys), label=name, **options)
    return bars.lines[0].get_color()
