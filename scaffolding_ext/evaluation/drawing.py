"""Pictures of results in one style.

An axis starts at zero or is broken, which two strokes at its start show. A point has its interval if there is one.
Greedy methods are open squares, and a ring marks the default. Legends stand beside the axes or below them, never on
the data. A title says what to look for, never the finding, because pictures are redrawn when the figures change.

matplotlib, of the extra `plots`, is imported when the first picture is drawn.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from scaffolding_ext.errors import MissingDependencyError, install_command
from scaffolding_ext.stats.intervals import Estimate

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8B6508", "#555555")  # Okabe and Ito's
STYLE: Any = {
    "axes.prop_cycle": f"cycler('color', {list(COLOURS)})",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "errorbar.capsize": 3,
    "figure.titlesize": "large",
    "font.size": 9,
    "grid.alpha": 0.3,
    "legend.fontsize": "small",
    "legend.frameon": False,
    "savefig.dpi": 100,
}
RING = "ring: the default"
GREEDY = "greedy"  # ending of the names of greedy methods
NEAR_ZERO = 0.5  # an axis starts at zero if its smallest value is below this share of the largest


def charts_need() -> str | None:
    """Return the command that installs matplotlib; None if it is there."""
    return None if importlib.util.find_spec("matplotlib") else install_command("plots")


@contextmanager
def drawing(
    path: str | os.PathLike[str] | IO[bytes], *shape: int, figsize: tuple[float, float] | None = None, **options: Any
) -> Iterator[tuple[Any, Any]]:
    """Yield a figure and its axes, as in `pyplot.subplots`; the picture is written when the block ends.

    Args:
        path: The file, or its path; folders are created.
        shape: Rows and columns of axes.
        figsize: Width and height in inches.
        options: Of `Figure.subplots`.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("matplotlib", "plots") from error

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=figsize, layout="constrained")
        axes = figure.subplots(*shape, **options)
        yield figure, axes
        for each in figure.axes:
            if each.get_visible():
                _begin(each)
        if isinstance(path, str | os.PathLike):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)


def bars_of(estimates: Sequence[Estimate]) -> list[list[float]]:
    """Return error bars for matplotlib: distances to the lower and upper ends, at least 0."""
    below = [max(0.0, e.value - e.low) for e in estimates]  # rounding may put an end past the value
    return [below, [max(0.0, e.high - e.value) for e in estimates]]


def marked(name: str) -> dict[str, Any]:
    """Return the shape of a method's points, by its name."""
    return {"fmt": "s", "mfc": "white"} if name.endswith(GREEDY) else {"fmt": "o"}


def point(axes: Any, x: Estimate, y: Estimate, name: str, *, is_default: bool = False, **options: Any) -> None:
    """Draw a method's point with both intervals."""
    options = {**marked(name), "label": name, "elinewidth": 1.2} | options
    axes.errorbar(x.value, y.value, xerr=bars_of([x]), yerr=bars_of([y]), **options)
    if is_default:
        ring(axes, x.value, y.value)


def ring(axes: Any, x: float, y: float) -> None:
    axes.plot(x, y, "o", ms=13, mfc="none", mec="black", mew=1.2, label=RING, zorder=5)


def below(figure: Any, axes: Any, num_columns: int) -> None:
    """Draw the legend of one of the axes below all of them."""
    handles = handles_of(axes)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=num_columns)


def handles_of(axes: Any) -> dict[str, Any]:
    """Return the named artists, each name once, the ring last."""
    handles, names = axes.get_legend_handles_labels()
    found = dict(zip(names, handles, strict=True))
    return dict(sorted(found.items(), key=lambda pair: pair[0] == RING))


def _begin(axes: Any) -> None:
    """Start each numeric axis at zero if that leaves room for the points; otherwise break it."""
    from matplotlib.ticker import FixedLocator

    for axis, end in ((axes.xaxis, "x"), (axes.yaxis, "y")):
        is_numbers = axis.get_scale() == "linear" and not isinstance(axis.get_major_locator(), FixedLocator)
        least, most = sorted(axis.get_data_interval())
        if not is_numbers or not least >= 0 or axis.get_inverted():  # also if nothing is drawn: NaN or infinite
            continue
        if least <= NEAR_ZERO * most:
            getattr(axes, f"set_{end}lim")(0, None)
        elif min(axis.get_view_interval()) > 0:
            _break(axes, end)


def _break(axes: Any, end: str) -> None:
    """Draw two strokes across the start of an axis."""
    along, across = ((0.03, 0.05), (0.0, 0.0)), [(-0.6, -1.0), (0.6, 1.0)]
    places = along if end == "x" else along[::-1]
    shape = across if end == "x" else [pair[::-1] for pair in across]
    shared: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False, "zorder": 6}
    axes.plot(*places, color="white", linewidth=3, gid=f"break {end}", **shared)
    axes.plot(*places, marker=shape, ms=8, mec="black", mew=1.0, linestyle="none", **shared)
