"""Pictures keep to one style: axes from zero or visibly broken, legends off the data, a title on each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks._lib.drawing import points
from scaffolding_ext.errors import MissingDependencyError
from scaffolding_ext.evaluation.drawing import drawing
from scaffolding_ext.evaluation.logs.graded import recording_of
from scaffolding_ext.evaluation.logs.samples import LoggedQuestion, LoggedSample
from scaffolding_ext.evaluation.tune.choose import Cheapest
from scaffolding_ext.evaluation.tune.replay import Replay
from scaffolding_ext.evaluation.tune.tuned import tuned
from scaffolding_ext.stats.intervals import Estimate

Faults = Callable[[Any], list[str]]
NUM = 30  # questions


def is_broken(axes: Any, end: str) -> bool:
    return any(line.get_gid() == f"break {end}" for line in axes.lines)


@pytest.mark.parametrize(("values", "begins", "broken"), [((2, 9), 0, False), ((80, 90), None, True)])
def test_an_axis_begins_at_zero_or_is_broken(
    values: tuple[float, ...], begins: float | None, broken: bool, drawn: list[Any], tmp_path: Path
) -> None:
    with drawing(tmp_path / "plot.png") as (_, axes):
        points(axes, [0, 1], [Estimate(value, value - 1, value + 1) for value in values])
    assert is_broken(axes, "y") is broken
    assert not is_broken(axes, "x")
    assert axes.get_ylim()[0] == begins or broken


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match="plots"), drawing(tmp_path / "plot.png"):
        pass


def legend_of(figure: Any) -> list[str]:
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    return [text.get_text() for legend in legends for text in legend.get_texts()]


def test_a_tuning_is_drawn_in_the_style_if_matplotlib_is_there(
    drawn: list[Any], style_faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    questions = [
        LoggedQuestion(str(number), "7", [LoggedSample(str(rng.integers(5, 8)), tokens=50 + n) for n in range(6)])
        for number in range(NUM)
    ]
    plays = Replay(recording_of(questions, ["here"], "sha256:0"))
    plays.try_all()
    found = tuned(plays, Cheapest(0.01))
    assert found is not None
    assert "data:image/png" in found.page()
    (figure,) = drawn
    assert style_faults(figure) == []
    assert {"every setting, on questions that chose it", "ask 6 times", "advice: the default"} <= set(legend_of(figure))
    monkeypatch.setattr("scaffolding_ext.evaluation.tune.tuned.charts_need", lambda: "pip install it")
    page = found.page()
    assert "data:image/png" not in page
    assert "Charts need matplotlib: pip install it" in page
