"""Dates, addresses, numerals, substances and codes are no mathematics; what is certain of answers, is right."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest

from scaffolding_ext.answers import Verdict, equal
from scaffolding_ext.answers.names import is_name, spelled

LIST = Path(__file__).parents[1] / "data" / "answer_pairs.jsonl"
PAIRS = [tuple(json.loads(line)) for line in LIST.read_text(encoding="utf-8").splitlines()]
NUM_SETS, SET_SIZE = 2_000, 6


def test_no_certain_verdict_on_the_labelled_pairs_is_wrong() -> None:
    assert len(PAIRS) == 300
    wrong = []
    for kind, one, other, is_same in PAIRS:
        verdicts = equal(one, other), equal(other, one)
        if verdicts[0] is not verdicts[1] or verdicts[0] is (Verdict.DIFFERENT if is_same else Verdict.EQUAL):
            wrong.append((kind, one, other, verdicts))
    assert wrong == []


@pytest.mark.slow
def test_certain_verdicts_are_an_equivalence() -> None:
    """Reflexive, symmetric, and never a = b = c with a certainly different from c."""
    texts = sorted({text for _, *both, _ in PAIRS for text in both})
    rng = random.Random(7)
    known: dict[tuple[str, str], Verdict] = {}

    def verdict(one: str, other: str) -> Verdict:
        if (one, other) not in known:
            known[one, other] = equal(one, other)
        return known[one, other]

    for _ in range(NUM_SETS):
        chosen = rng.sample(texts, SET_SIZE)
        assert all(verdict(text, text) is Verdict.EQUAL for text in chosen)
        for one, other in itertools.combinations(chosen, 2):
            assert verdict(one, other) is verdict(other, one), (one, other)
        for a, b, c in itertools.permutations(chosen, 3):
            if verdict(a, b) is verdict(b, c) is Verdict.EQUAL:
                assert verdict(a, c) is not Verdict.DIFFERENT, (a, b, c)


def test_names() -> None:
    cases = [
        *("2021-12-24", "24.12.2021", "1/2/2003", "23:59", "7:05 pm", "1789-1799"),
        *("10.1.2.3", "v2", "2001:db8::1", "+49-30-123456", "info@example.org"),
        *("xvii", "MCMXC", "CH3COOH", "Fe_2O_3", "Ca^{2+}", r"\mathrm{KNO_3}"),
        *("A113", "0xFF", "Bxf7", "snake_case", "a[3]", "p53"),
    ]
    assert [text for text in cases if not is_name(text)] == []


def test_no_names() -> None:
    cases = [
        *("2", "-3.5", "1/2", "1,000", "3:2", "1:2:3", "10^{-3}", "x-1", "ab-1", "2x", "x_1", "x^2", "n!", "i", "C"),
        *("(1,2)", "[0,1)", r"\frac12", "pi", "025", "12 V", "5 cm", "2A", "log2", "max3", "{1,2}", "x=5", "0.5", ""),
    ]
    assert [text for text in cases if is_name(text)] == []


def test_marks_of_setting_are_no_part_of_a_name() -> None:
    assert {spelled(text) for text in ("H_2O", "H2O", r"\mathrm{H_2O}", r"\text{H}_2\text{O}", "$H_{2}O$")} == {"H2O"}


def test_what_a_program_writes_is_read_as_latex() -> None:
    cases = [
        ("pi*sqrt(2)", r"\pi\sqrt{2}"),
        ("2**-1", r"\frac{1}{2}"),
        ("Rational(3,4)", "0.75"),
        ("exp(2)", "e^2"),
        ("0.1+0.7", "0.8"),
        (r"3\times0.1", r"\frac{3}{10}"),
        ("1.5**2", "2.25"),
    ]
    assert [(one, other, found) for one, other in cases if (found := equal(one, other)) is not Verdict.EQUAL] == []
