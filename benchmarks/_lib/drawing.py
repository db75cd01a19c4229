"""Pictures of studies, in the style of the package (`scaffolding_ext.evaluation.drawing`).

Studies take their pictures from the figures of a report, so that they are drawn again from a kept result.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scaffolding_ext.evaluation.drawing import (
    GREEDY,
    RING,
    bars_of,
    below,
    beside,
    coloured,
    marked,
    point,
    points,
    ring,
    rows,
)
from scaffolding_ext.evaluation.drawing import drawing as styled
from scaffolding_ext.stats.intervals import Estimate

__all__ = [
    "GREEDY",
    "RING",
    "Figures",
    "bars_of",
    "below",
    "beside",
    "coloured",
    "drawing",
    "frontier",
    "marked",
    "of",
    "point",
    "points",
    "ring",
    "rows",
]

Figures = Mapping[str, Mapping[str, Any]]
"""The figures of a report, or of a kept result."""

CUT = "cut"


@contextmanager
def drawing(path: Path, *shape: int, **options: Any) -> Iterator[tuple[Any, Any]]:
    """As the package's; and it says on stderr where the picture is."""
    with styled(path, *shape, **options) as made:
        yield made
    print(f"picture: {path}", file=sys.stderr)


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
