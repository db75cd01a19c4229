"""Calculations in a text are checked as they stand, and word problems bear their answers."""

import pytest

from benchmarks._lib.arithmetic import draw_word_problems, right_share


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("He has 3 + 4 = 7 apples.", 1.0),
        ("12 - 3 + 4 = 13", 1.0),
        ("12 -3 + 4 = 14", 0.0),
        ("2 + 3 * 4 = 14", 1.0),
        ("2 + 3 * 4 = 20", 0.0),
        ("-2 + 5 = 3, and 10 / 4 = 2.5", 1.0),
        ("7 + -2 = 5", 1.0),
        ("$1,200 / 2 = $600 and 5 x 5 = 24", 0.5),
        ("8 / 0 = 0", 0.0),
        ("no calculation at all", 0.5),
    ],
)
def test_the_share_of_right_calculations(text, share):
    assert right_share({"text": text}) == share


def test_word_problems_are_whole_and_repeat():
    problems = draw_word_problems(200, seed=3)
    assert problems == draw_word_problems(200, seed=3) != draw_word_problems(200, seed=4)
    assert all(problem.answer >= 0 and problem.question.endswith("have now?") for problem in problems)
