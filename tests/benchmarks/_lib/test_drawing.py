"""Pictures of studies keep to the style of the package's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks._lib.drawing import beside, frontier, of
from benchmarks._lib.pages import result
from benchmarks.studies import conformal_replay
from scaffolding_ext.evaluation.drawing import RING, drawing
from scaffolding_ext.stats.intervals import Estimate

pytest.importorskip("matplotlib")


DRAWN: dict[str, Callable[[Any, Path], None]] = {
    "conformal_replay": conformal_replay.plot,
}


@pytest.mark.parametrize("name", DRAWN)
def test_kept_results_are_drawn_in_the_style(
    name: str, drawn: list[Any], style_faults: Callable[[Any], list[str]], tmp_path: Path
) -> None:
    DRAWN[name](result(name)["figures"], tmp_path / "plot.png")
    (figure,) = drawn
    assert style_faults(figure) == []


def test_greedy_methods_are_open_squares_of_their_methods_colour_and_the_default_has_a_ring(
    drawn: list[Any], tmp_path: Path
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


def test_a_figure_without_interval_has_one_of_no_width() -> None:
    figures = {"seconds": {"value": 0.5, "low": None, "high": None}}
    assert of(figures, "seconds", 100) == Estimate(50, 50, 50)
    assert of(figures, "hours") is None
