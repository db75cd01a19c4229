"""Figures come out of their report's columns once more."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks._lib.columns import Columns, mismatches
from benchmarks._lib.report import Report
from scaffolding_ext.stats.intervals import wilson_interval

RIGHT = [1, 0, 1, 1, 0, 1, 0, 1]
OTHERS = [0, 0, 1, 1, 0, 0, 1, 1]
TOKENS = [310.5, 200, 150, 90, 400, 120, 77, 230]
OTHER_TOKENS = [600, 500, 300, 150, 410, 300, 150, 500]
QUESTIONS = ["a", "a", "b", "b", "c", "c", "d", "d"]


def a_report() -> Report:
    report = Report("a study", {"seed": 3}, 3)
    report.share("right", sum(RIGHT), len(RIGHT))
    report.difference("tokens", TOKENS)
    report.difference("points", RIGHT, OTHERS, QUESTIONS, scale=100)
    report.ratio("ratio", TOKENS, OTHER_TOKENS, QUESTIONS)
    report.saved("saved", TOKENS, OTHER_TOKENS)
    report.figure("a plain one", 1.5)
    return report


def test_figures_are_those_of_their_columns() -> None:
    figures = a_report().figures
    assert figures["right"]["value"] == 5 / 8
    assert (figures["right"]["low"], figures["right"]["high"]) == tuple(wilson_interval(5, 8))
    assert figures["tokens"]["value"] == pytest.approx(np.mean(TOKENS))
    assert figures["points"]["value"] == pytest.approx(100 * (5 - 4) / 8)
    assert figures["ratio"]["value"] == pytest.approx(sum(TOKENS) / sum(OTHER_TOKENS))
    assert figures["saved"]["value"] == pytest.approx(1 - sum(TOKENS) / sum(OTHER_TOKENS))
    for name in ("tokens", "points", "ratio", "saved"):
        assert figures[name]["low"] < figures[name]["value"] < figures[name]["high"]


def test_a_kept_document_gives_its_figures_again() -> None:
    document = json.loads(json.dumps(a_report().to_json()))
    assert list(mismatches(document)) == []
    assert len(Columns(document["columns"]).kept) == 7, "equal columns are kept once, and a value a question"


@pytest.mark.parametrize("name", ["right", "tokens", "points", "ratio", "saved"])
@pytest.mark.parametrize("end", ["value", "low", "high"])
def test_a_figure_that_was_changed_is_noticed(name: str, end: str) -> None:
    document = json.loads(json.dumps(a_report().to_json()))
    document["figures"][name][end] += 0.01
    assert list(mismatches(document)) == [name]


def test_a_column_that_was_changed_is_noticed() -> None:
    document = json.loads(json.dumps(a_report().to_json()))
    column = document["figures"]["saved"]["of"].split()[1]
    columns = Columns(document["columns"])
    columns.kept[column] = columns.kept[column].replace("400", "40")
    document["columns"] = columns.packed()
    assert set(mismatches(document)) == {"tokens", "saved"}


def test_an_interval_does_not_hang_on_what_was_reported_before() -> None:
    alone = Report("a study", {"seed": 3}, 3)
    alone.ratio("ratio", TOKENS, OTHER_TOKENS, QUESTIONS)
    assert alone.figures["ratio"] == a_report().figures["ratio"]


def test_where_runs_and_questions_vary_the_widths_are_added_in_squares() -> None:
    runs = ["a", "b", "c", "d"] * 2
    report = Report("a study", {"seed": 3}, 3)
    report.difference("points", RIGHT, OTHERS, runs, scale=100, crossing=QUESTIONS)
    report.ratio("tokens", TOKENS, OTHER_TOKENS, runs, crossing=QUESTIONS)
    value, low, high = report.columns.estimate("points", report.figures["points"]["of"], 3)
    by_run, by_question = (
        report.columns.estimate("points", part, 3) for part in report.figures["points"]["of"].split(" x ")
    )
    assert value == by_run.value == by_question.value
    assert value - low == pytest.approx(((value - by_run.low) ** 2 + (value - by_question.low) ** 2) ** 0.5)
    assert high - value == pytest.approx(((by_run.high - value) ** 2 + (by_question.high - value) ** 2) ** 0.5)
    assert list(mismatches(json.loads(json.dumps(report.to_json())))) == []


@pytest.mark.parametrize(("is_run_varying", "is_question_varying"), [(False, True), (True, True)])
def test_the_crossed_interval_holds_the_mean_as_often_as_it_says(
    is_run_varying: bool, is_question_varying: bool
) -> None:
    """100 seeded studies of 12 runs by 30 questions; four standard errors of the count below .95 are allowed."""
    rng = np.random.default_rng(0)
    runs, questions = np.repeat(np.arange(12), 30), np.tile(np.arange(30), 12)
    held = 0
    for number in range(100):
        values = (
            is_run_varying * rng.normal(size=12)[runs]
            + is_question_varying * rng.normal(size=30)[questions]
            + rng.normal(size=360)
        )
        report = Report("a study", {"seed": number}, number)
        found = report.difference("mean", values, questions=runs, crossing=questions)
        held += found.low <= 0 <= found.high
    assert held / 100 >= 0.95 - 4 * (0.95 * 0.05 / 100) ** 0.5
