"""The part of a recording that is kept back shares nothing with the part that chooses."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.studies.real import halves
from scaffolding_ext.evaluation.logs.samples import RecordedQuestion, Recording


def recording(num_runs: int, num_questions: int) -> Recording:
    classes = np.zeros(2, dtype=np.int64)
    return Recording(
        [
            RecordedQuestion(f"q{number}", f"run {run}", "task", classes, classes == 0, 0, classes + 10)
            for run in range(num_runs)
            for number in range(num_questions)
        ],
        ["here"],
        "sha256:0",
    )


@pytest.mark.parametrize("num_runs", [1, 12])
def test_halves_share_no_question_and_no_run(num_runs: int) -> None:
    choosing, judging = halves(recording(num_runs, 40))
    assert not {each.id for each in choosing.questions} & {each.id for each in judging.questions}
    if num_runs > 1:
        assert not set(choosing.runs) & set(judging.runs)
    assert len({each.id for each in [*choosing.questions, *judging.questions]}) == 40
    for part in (choosing, judging):
        num_own = len({each.id for each in part.questions}) * len(set(part.runs))
        assert len(part.questions) == num_own > 0, "every run of a part has every question of it"
