"""Pictures of studies, in the style of the package (`scaffolding_ext.evaluation.drawing`).

Studies take their pictures from the figures of a report, so that they are drawn again from a kept result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scaffolding_ext.evaluation.drawing import COLOURS, GREEDY, bars_of, handles_of, marked, point
from scaffolding_ext.stats.intervals import Estimate

Figures = Mapping[str, Mapping[str, Any]]
"""The figures of a report, or of a kept result."""

CUT = "cut"


def of(figures: Figures, name: str, scale: float = 1.0) -> Estimate | None:
    """A figure by its name; None where there is none. The interval of a figure without one has no width."""
    figure = figures.get(name)
    if figure is None or figure["value"] is None:
        return None
    ends = (figure["value"] if figure[end] is None else figure[end] for end in Estimate._fields)
    return Estimate(*(scale * end for end in ends))


def frontier(axes: Any, figures: Figures, names: Sequence[str], *, default: str | None = None) -> None:
    """Accuracy against decoded tokens, a point a method, of the figures that `add_run` adds."""
    methods = list(dict.fromkeys(name.removesuffix(f", {GREEDY}") for name in names))
    for name in names:
        tokens, accuracy = of(figures, f"{name}: decoded tokens"), of(figures, f"{name}: accuracy", 100)
        number = methods.index(name.removesuffix(f", {GREEDY}"))
        if tokens is not None and accuracy is not None:
            shape = coloured(number) | (marked(name) if name.endswith(GREEDY) else {})
            if CUT in name:  # of as many tokens as another method: it lies behind that
                shape |= {"elinewidth": 4, "alpha": 0.5}
            point(axes, tokens, accuracy, name, is_default=name == default, **shape)
    axes.set(xlabel="decoded tokens a problem (all that was generated)", ylabel="accuracy, %")
    axes.set_xlim(0, None)


def coloured(number: int) -> dict[str, Any]:
    """Return the colour of a method by its number; beyond the palette, also a shape."""
    return {"color": f"C{number % len(COLOURS)}"} | ({"fmt": "^"} if number >= len(COLOURS) else {})


def points(axes: Any, xs: Sequence[float], ys: Sequence[Estimate], name: str | None = None, **options: Any) -> Any:
    """Draw a line of points with their intervals; return its colour."""
    options = {"fmt": "o-", "ms": 4, "elinewidth": 1.0} | options
    bars = axes.errorbar(xs, [y.value for y in ys], yerr=bars_of(ys), label=name, **options)
    return bars.lines[0].get_color()


def beside(axes: Any) -> None:
    """Draw the legend right of the axes."""
    handles = handles_of(axes)
    axes.legend(handles.values(), handles.keys(), loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0)
