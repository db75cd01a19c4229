"""One budget for a data set: greedy chains are paired by question; an embedded model's samples are recorded once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks._lib.report import Report
from benchmarks.studies.data_set_budget import EVEN, GREEDY, OURS, Bought, main, report_greedy
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.evaluation.run.run_folder import SUMMARY


def vote(id: str, right: bool, length: int = 10) -> LabelledVote:
    return LabelledVote(id, [0], [right], [length])


def test_a_greedy_chain_is_held_against_the_votes_of_its_own_question() -> None:
    votes = [vote(id, False) for id in "abcd"]
    greedy = [vote("d", False, 7), vote("b", True, 8), vote("a", True, 9), vote("c", False, 6)]
    bought = Bought(np.array([1.0, 1.0, 0.0, 0.0]), np.full(4, 10.0))  # right where the greedy chains are
    report = Report("test", {})
    report_greedy(report, greedy, votes, {0.1: {OURS: bought, EVEN: bought._replace(correct=np.zeros(4))}})
    assert report.figures[f"{GREEDY}: tokens"]["value"] == 30
    assert report.figures[f"{GREEDY}: right, %"]["value"] == 50
    assert {end: report.figures[f"{OURS} against {GREEDY} at 10%: points"][end] for end in ("low", "high")} == {
        "low": 0,
        "high": 0,
    }
    assert report.figures[f"{EVEN} against {GREEDY} at 10%: points"]["value"] == -50


def test_two_sources_of_samples_are_refused(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").touch()
    result = CliRunner().invoke(main, ["--model", "tinylm/draft", "--samples", str(tmp_path / "samples.jsonl")])
    assert result.exit_code == 2
    assert "give one of them" in result.output


@pytest.mark.slow
def test_the_samples_of_an_embedded_model_are_recorded_once(tmp_path: Path) -> None:
    command = ["--quick", "--json", "--model", "tinylm/draft", "--store", str(tmp_path)]
    first = CliRunner().invoke(main, command)
    assert first.exit_code == 0, first.output
    summaries = {path: path.stat().st_mtime_ns for path in tmp_path.glob(f"*/{SUMMARY}")}
    assert {path.parent.name for path in summaries} == {"drawn", "greedy", EVEN, OURS}
    again = CliRunner().invoke(main, command)
    assert {path: path.stat().st_mtime_ns for path in summaries} == summaries
    assert json.loads(again.stdout)["figures"] == json.loads(first.stdout)["figures"]
