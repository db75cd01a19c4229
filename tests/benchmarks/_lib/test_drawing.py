"""Pictures of studies keep to the style of the package's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks._lib.drawing import of
from benchmarks._lib.pages import result
from benchmarks.studies import conformal_replay, demo
from scaffolding_ext.evaluation.drawing import RING
from scaffolding_ext.stats.intervals import Estimate

pytest.importorskip("matplotlib")


DRAWN: dict[str, Callable[[Any, Path], None]] = {
    "conformal_replay": conformal_replay.plot,
    "demo": demo.plot,
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
    figures = result("demo")["figures"]
    demo.plot(figures, tmp_path / "plot.png")
    (axes,) = drawn[0].axes
    lines = {bars.get_label(): bars.lines[0] for bars in axes.containers}
    assert [line.get_marker() for line in lines.values()] == ["o"] * 3 + ["s"] * 3
    colours = [line.get_color() for line in lines.values()]
    assert colours[:3] == colours[3:]
    assert len(set(colours)) == 3
    (circle,) = [line for line in axes.lines if line.get_label() == RING]
    tokens, accuracy = of(figures, "DynasorCoT: decoded tokens"), of(figures, "DynasorCoT: accuracy", 100)
    assert (circle.get_xdata()[0], circle.get_ydata()[0]) == (tokens.value, accuracy.value)


def test_a_figure_without_interval_has_one_of_no_width() -> None:
    figures = {"seconds": {"value": 0.5, "low": None, "high": None}}
    assert of(figures, "seconds", 100) == Estimate(50, 50, 50)
    assert of(figures, "hours") is None
