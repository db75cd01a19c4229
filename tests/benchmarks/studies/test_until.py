"""The rule that `eval --until` is held against: the usual interval, looked at after each question."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from benchmarks.studies.until import FIRST_LOOK, by_usual_interval, is_false, until_known, voted
from scaffolding_ext.evaluation.run.until import UntilGoal
from tests.evaluation.tune.recorded import recording

RNG = np.random.default_rng(0)


def test_it_stops_at_the_first_interval_that_is_narrow_enough() -> None:
    """The interval is computed here anew: Wilson's, at the number of questions that a finite set counts for."""
    right = RNG.permutation(np.repeat([0.0, 1.0], [60, 240]))
    found = by_usual_interval(UntilGoal(0.05, None), right, None)
    for number in range(FIRST_LOOK, 300):
        mean, size, z = right[:number].mean(), number * 299 / (300 - number), 1.959964
        half = z * math.sqrt(mean * (1 - mean) / size + (z / (2 * size)) ** 2) / (1 + z * z / size)
        centre = (mean + z * z / (2 * size)) / (1 + z * z / size)
        if half + abs(centre - mean) <= 0.05:
            break
    assert found.num_asked == number
    assert found.is_false == (abs(mean - right.mean()) > 0.05)


def test_by_hand_a_comparison_ends_when_zero_is_left_out_or_nothing_has_varied_yet() -> None:
    ours, theirs = np.ones(100), np.repeat([0.0, 1.0], [50, 50])
    assert by_usual_interval(UntilGoal(0.02, "x"), ours, theirs) == (FIRST_LOOK, False)
    assert by_usual_interval(UntilGoal(0.02, "x"), theirs[::-1].copy(), ours) == (FIRST_LOOK, True)


@pytest.mark.parametrize("points", [5, 8])
def test_by_until_a_stop_needs_more_questions_than_by_one_look(points: int) -> None:
    right = RNG.permutation(np.repeat([0.0, 1.0], [120, 280]))
    goal = UntilGoal(points / 100, None)
    assert by_usual_interval(goal, right, None).num_asked < until_known(goal, right, None).num_asked < 400


@pytest.mark.parametrize(
    ("conclusion", "estimate", "truth", "false"),
    [
        (None, 0.0, 0.5, False),
        ("known", 0.52, 0.5, False),
        ("known", 0.53, 0.5, True),
        ("better", 0.1, 0.0, True),
        ("better", 0.1, 0.01, False),
        ("worse", -0.1, 0.0, True),
        ("within", 0.0, -0.03, True),
        ("within", 0.0, 0.02, False),
    ],
)
def test_conclusions_are_held_against_all_questions(
    conclusion: str | None, estimate: float, truth: float, false: bool
) -> None:
    assert is_false(conclusion, estimate, truth, 0.02) == false


def test_each_answer_is_a_run_and_so_are_votes_of_eight_that_share_none() -> None:
    logged = recording(5, 18, ability=0.5)
    table = voted(logged)
    assert table.shape == (18 + 2, 5)
    for column, question in zip(table.T, logged.questions, strict=True):
        assert column[:18].tolist() == question.correct.tolist()
        for start, won in ((0, column[18]), (8, column[19])):
            counts = Counter(question.classes[start : start + 8].tolist()).most_common()
            assert won == float(counts[0][0] == 0)
    assert 0 < table[18:].mean() < 1
