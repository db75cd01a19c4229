"""mean@n, maj@k and pass@k of attempts as records have them."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from scaffolding_ext.evaluation.run.records import Record, RecordError
from scaffolding_ext.evaluation.run.summary import Repeats, summarize
from scaffolding_ext.request.ledger import Ledger
from scaffolding_ext.stats.intervals import share_of_questions, wilson_interval


class Attempt(NamedTuple):
    epoch: int
    answer: str | None
    correct: bool


RIGHT = [Attempt(epoch, "7", True) for epoch in range(4)]
# Two ways to write one wrong answer outvote the right one; the attempts come in another order than they are counted.
SPLIT = [Attempt(3, "7", True), Attempt(1, "1/2", False), Attempt(2, "0.5", False), Attempt(0, None, False)]


def figures_of(questions: list[list[Attempt]]) -> Repeats:
    """Return the figures of a run that wrote these records."""
    ledger, seconds = Ledger().to_json(), {"total": 1.0}
    found = summarize(
        Record(
            str(number), each.epoch, "0", "7", "", each.answer, each.correct, None, None, ledger, seconds, 0, [], None
        )
        for number, attempts in enumerate(questions)
        for each in attempts
    ).repeats
    assert found is not None
    return found


def test_figures_of_two_questions() -> None:
    found = figures_of([RIGHT, SPLIT])
    assert found.n == 4
    assert found.mean.value == pytest.approx(0.625)
    assert list(found.majority) == list(found.passed) == [1, 2, 4]
    assert found.passed[2].value == pytest.approx((1 + 1 / 2) / 2)
    assert found.passed[4].value == 1.0
    assert found.majority[4].value == 0.5
    assert found.mean == share_of_questions([4, 1], [4, 4]) == found.majority[1] == found.passed[1]
    assert found.majority[4] == share_of_questions([1, 0], [1, 1])


def test_questions_of_an_interrupted_run_count_where_they_have_enough_attempts() -> None:
    found = figures_of([RIGHT, SPLIT[:1], SPLIT[1:2]])
    assert found.mean.value == pytest.approx(2 / 3)
    assert found.majority[1].value == pytest.approx(2 / 3)
    assert found.majority[4].value == found.passed[4].value == 1.0


def test_one_question_counts_for_one_sample_however_often_it_was_asked() -> None:
    low, high = wilson_interval(1, 1)
    assert figures_of([RIGHT]).to_json()["mean_at_n"] == {"n": 4, "value": 1.0, "low": low, "high": high}


@pytest.mark.parametrize(("num_votes", "num_equal", "is_told"), [(8, 8, True), (8, 7, False), (3, 3, False)])
def test_a_run_whose_votes_all_have_equal_samples_has_a_warning(num_votes: int, num_equal: int, is_told: bool) -> None:
    ledger, seconds = Ledger().to_json(), {"total": 1.0}
    found = summarize(
        Record(str(n), 0, "0", "7", "", "7", True, None, None, ledger, seconds, 0, trace, None)
        for n in range(num_votes)
        for trace in ([{"event": "equal_samples", "num_samples": 4}] if n < num_equal else [{"event": "vote"}],)
    )
    assert any("the same text" in warning for warning in found.warnings) == is_told


def test_a_failed_request_does_not_hide_that_all_votes_have_equal_samples() -> None:
    ledger, seconds, trace = Ledger().to_json(), {"total": 1.0}, [{"event": "equal_samples", "num_samples": 4}]
    voted = [Record(str(n), 0, "0", "7", "", "7", True, None, None, ledger, seconds, 0, trace, None) for n in range(8)]
    error = RecordError("RequestError", "it broke")
    failed = Record("8", 0, "0", "7", None, None, False, None, None, ledger, seconds, 0, [], error)
    found = summarize([*voted, failed])
    assert found.num_failed == 1
    assert any("the same text" in warning for warning in found.warnings)
