"""Runs of one controller at different knobs are a sweep, and what equal accuracy saves is interpolated and marked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from scaffolding_ext.evaluation.compare.finished_run import read_run
from scaffolding_ext.evaluation.compare.paired import compare
from scaffolding_ext.evaluation.compare.sweeps import Sweep, sweeps_of
from scaffolding_ext.evaluation.report.terminal import shown_saving

STACK = """
controller: {{type: DynasorCoTController, args: {{certainty_threshold: {threshold}, chunk_size: 64}}}}
workers: {{generation: {{type: HuggingFaceWorker, args: {{model: {model}}}}}}}
"""


@pytest.fixture
def sweeps(write_run: Callable[..., Path]) -> Callable[..., list[Sweep]]:
    """Of a baseline that is right in 60 of 100 for 100 tokens, and runs of (right, tokens, threshold, model)."""

    def make(*points: tuple[int, int, int, str]) -> list[Sweep]:
        folders = [write_run("plain", [(f"q{n}", n < 60, 100) for n in range(100)])]
        for right, tokens, threshold, model in points:
            rows = [(f"q{n}", n < right, tokens) for n in range(100)]
            folders.append(write_run(f"t{threshold}{model}", rows, STACK.format(threshold=threshold, model=model)))
        runs = [read_run(folder) for folder in folders]
        others = [compare(runs[0], run, num_resamples=500) for run in runs[1:]]
        return sweeps_of(runs, [others[0].baseline_point, *(one.run_point for one in others)], num_resamples=500)

    return make


def test_knobs_that_differ_name_the_points_and_the_saving_is_interpolated(sweeps: Callable[..., list[Sweep]]) -> None:
    (sweep,) = sweeps((70, 80, 5, "m"), (50, 40, 2, "m"))
    assert (sweep.name, sweep.baseline) == ("DynasorCoTController", "plain")
    assert [run.values for run in sweep.runs] == [{"certainty_threshold": 2}, {"certainty_threshold": 5}]
    assert [run.point.accuracy.value for run in sweep.runs] == [0.5, 0.7]
    assert [run.point.tokens.value for run in sweep.runs] == [40, 80]
    saved = sweep.saving.saved
    assert saved is not None
    assert saved.value == pytest.approx(0.4)
    assert saved.low <= 0.4 <= saved.high
    assert sweep.saving.interpolated
    assert shown_saving(sweep.saving).endswith(", interpolated")


def test_the_cheapest_run_that_is_as_accurate_is_not_called_interpolated(sweeps: Callable[..., list[Sweep]]) -> None:
    (sweep,) = sweeps((70, 80, 5, "m"), (60, 40, 2, "m"))
    assert sweep.saving == ((0.6, 0.6, 0.6), False, 1.0)


def test_an_accuracy_that_is_not_reached_saves_nothing(sweeps: Callable[..., list[Sweep]]) -> None:
    (sweep,) = sweeps((55, 80, 5, "m"), (40, 40, 2, "m"))
    assert sweep.saving.saved is None
    assert shown_saving(sweep.saving).startswith("not reached (")
    assert json.loads(json.dumps(sweep.to_json()))["saving"]["saved"] is None


def test_other_models_are_no_sweep(sweeps: Callable[..., list[Sweep]]) -> None:
    assert sweeps((70, 80, 5, "m"), (50, 40, 2, "other")) == []


def test_an_argument_whose_name_ends_in_type_is_a_knob(write_run: Callable[..., Path]) -> None:
    stack = """
controller: {{type: NativeGenerationController, args: {{task_type: {kind}}}}}
workers: {{generation: {{type: HuggingFaceWorker, args: {{model: m}}}}}}
"""
    rows = [(f"q{n}", n < 60, 100) for n in range(100)]
    folders = [write_run("plain", rows), *(write_run(kind, rows, stack.format(kind=kind)) for kind in ("sum", "max"))]
    runs = [read_run(folder) for folder in folders]
    others = [compare(runs[0], run, num_resamples=50) for run in runs[1:]]
    points = [others[0].baseline_point, *(one.run_point for one in others)]
    (sweep,) = sweeps_of(runs, points, num_resamples=50)
    assert [run.values for run in sweep.runs] == [{"task_type": "sum"}, {"task_type": "max"}]
