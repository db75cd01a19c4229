"""Scores follow the one notion of equality, and say what they could not decide."""

from __future__ import annotations

import json
import re
from pathlib import Path

from scaffolding_ext.answers import extract
from scaffolding_ext.evaluation.run.scoring import Score, score


def test_scores() -> None:
    cases = [
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
    ]
    assert [
        (answer, target, expected, found)
        for answer, target, expected in cases
        if (found := score(answer, target)) != expected
    ] == []


def test_what_only_the_strings_can_tell_is_equal_by_them() -> None:
    answer = "x" * 2_000  # longer than the fast path looks at
    assert score(f" {answer}\n", answer) == Score(True, "equal")
    assert score(answer + "y", answer) == Score(False, "undetermined")


def test_units_may_be_implied() -> None:
    assert score("5 cm", "5", units_implied=True) == Score(True, "equal")
    assert score("50%", "50", units_implied=True) == Score(True, "equal")
    assert score("50%", "0.5", units_implied=True) == Score(False, "different")


ANSWERS = Path(__file__).parent / "smollm2_answers.jsonl"
LAST_NUMBER = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")  # as gsm8k.yaml of lm-evaluation-harness 0.4.13 has it
DIFFERENT = {  # id of an answer: what we read, the last number, and why they differ
    "3": ("2", "10", "the answer is stated, and another number follows"),
    "13": ("2,288", "488", "the answer is stated, and a number that it is not"),
    "14": ("24 + 17 = 43", "17", "the answer is stated, and another number follows"),
    "15": ("3 + 8 + 15 + 1 = 33 lemon cupcakes", "3", "the answer is stated, and another number follows"),
    "17": ("12950", "2", "the answer is stated, and another number follows"),
    "41": ("not just any amount", "140", "the model calls words the answer"),
}


def flexible(text: str) -> str | None:
    """The last number, cleaned as the harness does before it compares; None where there is none."""
    found = [match[0] for match in LAST_NUMBER.finditer(text)]
    return re.sub(r"[,$]|\.$", "", found[-1]) if found else None


def test_our_reading_and_flexible_extract_differ_by_named_cases_alone() -> None:
    texts = {row["id"]: row["text"] for row in map(json.loads, ANSWERS.read_text(encoding="utf-8").splitlines())}
    differing = {}
    for name, text in texts.items():
        ours, theirs = extract(text) or extract(text, fallback="last"), flexible(text)
        same = ours is theirs if ours is None or theirs is None else score(ours, theirs, units_implied=True).correct
        if not same:
            differing[name] = (ours, theirs)
    assert differing == {name: (ours, theirs) for name, (ours, theirs, _) in DIFFERENT.items()}
    assert len(texts) - len(differing) > 0.8 * len(texts)
