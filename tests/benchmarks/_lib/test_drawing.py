"""Pictures keep to one style: axes from zero or visibly broken, legends off the data, a title on each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks._lib.drawing import RING, beside, drawing, frontier, of, points, rows
from benchmarks._lib.pages import result
from benchmarks.studies import (
    branching,
    conformal_replay,
    data_set_budget,
    judge_quality,
    kv_sharing,
    scheduling,
    stopping,
    voting,
)
from scaffolding_ext.stats.intervals import Estimate

pytest.importorskip("matplotlib")


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are drawn, instead of their files."""
    from matplotlib.figure import Figure

    drawn: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    return drawn


def is_broken(axes: Any, end: str) -> bool:
    return any(line.get_gid() == f"break {end}" for line in axes.lines)


def faults(figure: Any) -> list[str]:
    """What of the style a picture lacks."""
    from matplotlib.ticker import FixedLocator

    figure.draw_without_rendering()
    found = []
    for axes in figure.axes:
        if not axes.get_visible():
            continue
        if not axes.get_title(loc="left"):
            found.append("no title")
        for axis, end in ((axes.xaxis, "x"), (axes.yaxis, "y")):
            is_numbers = axis.get_scale() == "linear" and not isinstance(axis.get_major_locator(), FixedLocator)
            low, high = sorted(axis.get_view_interval())
            if is_numbers and not low <= 0 <= high and not is_broken(axes, end):
                found.append(f"{end} begins at {low:g}")
        legend = axes.get_legend()
        if legend is not None and legend.get_window_extent().overlaps(axes.patch.get_window_extent()):
            found.append("legend on the data")
    for legend in figure.legends:
        place = legend.get_window_extent()
        found += ["legend on the data" for axes in figure.axes if place.overlaps(axes.patch.get_window_extent())]
    return found


DRAWN: dict[str, Callable[[Any, Path], None]] = {
    "branching": lambda figures, path: branching.plot(figures, [(0.0, 0.0), (1.0, 0.3)], path),
    "branching_third": lambda figures, path: branching.plot(figures, [], path),
    "stopping": stopping.plot,
    "scheduling_live": scheduling.plot,
    "data_set_budget": data_set_budget.plot,
    "judge_quality": judge_quality.plot,
    "kv_sharing": kv_sharing.plot,
    "conformal_replay": lambda figures, path: conformal_replay.plot(figures, "conservative", path),
    "voting": lambda figures, path: voting.plot(figures, [name for name in voting.methods(0.1) if name], path),
}


@pytest.mark.parametrize("name", DRAWN)
def test_kept_results_are_drawn_in_the_style(name: str, kept: list[Any], tmp_path: Path) -> None:
    DRAWN[name](result(name)["figures"], tmp_path / "plot.png")
    (figure,) = kept
    assert faults(figure) == []


@pytest.mark.parametrize(("values", "begins", "broken"), [((2, 9), 0, False), ((80, 90), None, True)])
def test_an_axis_begins_at_zero_or_is_broken(
    values: tuple[float, ...], begins: float | None, broken: bool, kept: list[Any], tmp_path: Path
) -> None:
    with drawing(tmp_path / "plot.png") as (_, axes):
        points(axes, [0, 1], [Estimate(value, value - 1, value + 1) for value in values])
    assert is_broken(axes, "y") is broken
    assert not is_broken(axes, "x")
    assert axes.get_ylim()[0] == begins or broken


def test_what_falls_below_zero_needs_no_break(kept: list[Any], tmp_path: Path) -> None:
    with drawing(tmp_path / "plot.png") as (_, axes):
        points(axes, [0, 1], [Estimate(1, -2, 3), Estimate(4, 2, 5)])
    assert not is_broken(axes, "y")
    assert axes.get_ylim()[0] < -2


def test_a_legend_on_the_data_and_a_missing_title_are_found(kept: list[Any], tmp_path: Path) -> None:
    with drawing(tmp_path / "plot.png") as (_, axes):
        axes.plot([0, 1], [0, 1], label="line")
        axes.legend(loc="center")
    assert sorted(faults(kept[0])) == ["legend on the data", "no title"]


def test_greedy_methods_are_open_squares_of_their_methods_colour_and_the_default_has_a_ring(
    kept: list[Any], tmp_path: Path
) -> None:
    figures = {
        f"{name}: {what}": {"value": value, "low": value - 0.1, "high": value + 0.1}
        for name, right in (("ours", 0.5), ("theirs", 0.6), ("ours, greedy", 0.7))
        for what, value in (("decoded tokens", 100.0), ("accuracy", right))
    }
    with drawing(tmp_path / "plot.png") as (_, axes):
        frontier(axes, figures, ["ours", "theirs", "ours, greedy"], default="theirs")
        beside(axes)
    lines = {bars.get_label(): bars.lines[0] for bars in axes.containers}
    assert [line.get_marker() for line in lines.values()] == ["o", "o", "s"]
    assert lines["ours, greedy"].get_color() == lines["ours"].get_color() != lines["theirs"].get_color()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["ours", "theirs", "ours, greedy", RING]
    (circle,) = [line for line in axes.lines if line.get_label() == RING]
    assert (circle.get_xdata()[0], circle.get_ydata()[0]) == (100.0, 60.0)


def test_rows_stand_from_the_top_and_the_default_is_bold(kept: list[Any], tmp_path: Path) -> None:
    named = {"first": Estimate(1, 0, 2), "second": Estimate(3, 2, 4)}
    with drawing(tmp_path / "plot.png") as (_, axes):
        rows(axes, named, default="second")
    assert [label.get_fontweight() for label in axes.get_yticklabels()] == ["normal", "bold"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]


def test_a_figure_without_interval_has_one_of_no_width() -> None:
    figures = {"seconds": {"value": 0.5, "low": None, "high": None}}
    assert of(figures, "seconds", 100) == Estimate(50, 50, 50)
    assert of(figures, "hours") is None
