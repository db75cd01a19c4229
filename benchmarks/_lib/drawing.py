"""Axes to draw on, and what is drawn on them again and again."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scaffolding_ext.stats.intervals import Estimate


@contextmanager
def drawing(path: Path, *shape: int, **options: Any) -> Iterator[tuple[Any, Any]]:
    """A figure and its axes, as `pyplot.subplots` makes them; the picture is written when the block ends.

    Args:
        path: Where to; folders are made.
        shape: Rows and columns of axes.
        options: Of `pyplot.subplots`.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(*shape, layout="constrained", **options)
    yield figure, axes
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    print(f"picture: {path}", file=sys.stderr)


def bars_of(estimates: Sequence[Estimate], scale: float = 1.0) -> list[list[float]]:
    """Error bars as matplotlib takes them: distances to the lower ends, and to the upper ones."""
    return [[scale * (e.value - e.low) for e in estimates], [scale * (e.high - e.value) for e in estimates]]
