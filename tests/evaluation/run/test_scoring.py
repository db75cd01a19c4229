"""Scores follow the one notion of equality, and say what they could not decide."""

from __future__ import annotations

import pytest

from scaffolding_ext.evaluation.run.scoring import Score, score


@pytest.mark.parametrize(
    ("answer", "target", "expected"),
    [
        ("1/2", "0.5", Score(True, "equal")),
        (r"\frac{1}{2}", "0.5", Score(True, "equal")),
        ("-3", "3", Score(False, "different")),
        ("A", "B", Score(False, "different")),
        ("x+1", " x+1", Score(True, "equal")),
        ("x+1", "1+x", Score(True, "equal")),
        (r"\sqrt{8}", r"2\sqrt{2}", Score(True, "equal")),
        ("no idea", "(1,2)", Score(False, "undetermined")),
        ("5 cm", "5", Score(False, "undetermined")),
        (None, "3", Score(False, None)),
        ("11", "The answer is 11", Score(True, "equal")),
        ("11", r"6 + 5 = \boxed{11}", Score(True, "equal")),
        ("12", "The answer is 11.", Score(False, "different")),
    ],
)
def test_scores(answer: str | None, target: str, expected: Score) -> None:
    assert score(answer, target) == expected


def test_what_only_the_strings_can_tell_is_equal_by_them() -> None:
    answer = "x" * 2_000  # longer than the fast path looks at
    assert score(f" {answer}\n", answer) == Score(True, "equal")
    assert score(answer + "y", answer) == Score(False, "undetermined")


def test_units_may_be_implied() -> None:
    assert score("5 cm", "5", units_implied=True) == Score(True, "equal")
    assert score("50%", "50", units_implied=True) == Score(True, "equal")
    assert score("50%", "0.5", units_implied=True) == Score(False, "different")
