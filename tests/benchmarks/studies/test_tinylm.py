"""The gates of the embedded models, by definition."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from benchmarks._lib.report import Report
from benchmarks.studies import tinylm
from benchmarks.studies.tinylm import Answered, Figures, Written, measure, voted
from scaffolding_ext.tinylm.grammar import Problem, sample_problem

PROBLEM = Problem("sum", "Start with 22. Apply c+4,d-6. Find the total.", "20", 22, ("c+4", "d-6"))


def chain(answer: str | None, thinking: str = "", num_tokens: int = 10) -> Written:
    return Written(thinking, answer, num_tokens, num_tokens // 2)


def answered(votes: list[str | None], greedy: str = "20", forced: list[list[str | None]] | None = None) -> Answered:
    others = {str(t): [chain("20")] for t in tinylm.OTHER_TEMPERATURES}
    return Answered({"0.7": [chain(a) for a in votes], "0.0": [chain(greedy)]} | others, forced or [])


def figures(*rows: Answered) -> tuple[Figures, Report]:
    report = Report("tinylm", {})
    return Figures(report, "it", [PROBLEM] * len(rows), list(rows)), report


@pytest.mark.parametrize(
    ("answers", "share"),
    [
        (["20", "20", "7"], 1.0),
        (["7", "7", "20"], 0.0),
        (["7", "20"], 0.5),
        (["7", "8", "20"], pytest.approx(1 / 3)),
        ([None, None, "20"], 1.0),
        ([None], 0.0),
    ],
)
def test_of_equally_frequent_answers_each_counts_its_part(answers: list[str | None], share: float) -> None:
    assert voted(answers, "20") == share


def test_a_vote_is_held_against_one_chain_and_against_greedy() -> None:
    """Three chains of four are right, so the vote is; greedy is wrong in one of two questions."""
    own, report = figures(answered(["20", "20", "20", "7"]), answered(["20", "20", "20", "7"], greedy="7"))
    own.accuracy(65, 82)
    own.votes()
    own.vote_over_greedy(8)
    values = {name: figure["value"] for name, figure in report.figures.items()}
    assert values["it: one chain"] == 75
    assert values["it: vote of 4 less one chain"] == 25
    assert values["it: vote of 4 less greedy"] == 50
    held = {(bar.name, bar.sign): bar.holds for bar in report.bars}
    assert held["it: one chain", ">="]
    assert held["it: one chain", "<="]
    assert not held["it: vote of 4 less one chain", "<="]


def test_hard_and_sure_questions_and_the_commonest_wrong_answer() -> None:
    own, report = figures(answered(["7", "7", "8", "9"]), answered(["20"] * 4), answered(["20", "20", "6", "6"]))
    own.votes()
    values = {name: figure["value"] for name, figure in report.figures.items()}
    assert values["it: hard questions (p < 0.2)"] == pytest.approx(100 / 3)
    assert values["it: sure questions (p > 0.8)"] == pytest.approx(100 / 3)
    assert values["it: distinct wrong answers"] == 2
    assert values["it: commonest wrong answer among wrong ones"] == 75


def test_forced_answers_must_rise() -> None:
    own, report = figures(
        answered(["20", "20"], forced=[["7", "20", "7"], ["7", "20", "20"]]),
        answered(["20", "7"], forced=[["7", "7", "20"], ["7", "7", "7"]]),
    )
    own.forced()
    shares = [figure["value"] for figure in report.figures.values()]
    assert shares == [0, 50, 50, 75]
    assert [(bar.value, bar.holds) for bar in report.bars] == [(0, True), (75, True)]


def test_lines_are_held_against_their_methods() -> None:
    """Two lines of `columns`, of which the first must be misread; `units` reads all, and writes one line wrongly."""
    follows = "Okay, by columns first.\nc+4:22+9=31\nd-6:31-6=25\n"
    fails = "Okay, by columns first.\nc+4:22+4=26\nWait, from the start by units.\nc+4?22+4=27\n"
    own, report = figures(Answered({"0.7": [chain("25", follows), chain("26", fails)]}, []))
    own.lines()
    values = {name: figure["value"] for name, figure in report.figures.items()}
    assert values["it: lines misread where their method must"] == 0.5
    assert values["it: other lines that fail"] == 0.5


def test_what_the_store_holds_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting:
        num_asked = 0

        def answer(self, problems: list[Problem], *_: Any) -> list[Answered]:
            self.num_asked += len(problems)
            return [answered(["20", "7"], forced=[["20", None, "7"]]) for _ in problems]

    monkeypatch.setattr(tinylm, "_BLOCK", 2)
    rng = random.Random(0)
    problems = [sample_problem(rng) for _ in range(3)]
    author: Any = Counting()
    first = measure(author, problems, 2, 1, 0, tmp_path)
    assert measure(author, problems, 2, 1, 0, tmp_path) == first
    assert author.num_asked == 3
    assert first[0].forced == [["20", None, "7"]]
    assert measure(author, problems, 2, 1, 1, tmp_path) == first  # another seed asks anew
    assert author.num_asked == 6
