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
