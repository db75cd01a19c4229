"""Classes of equal answers, in whatever order and portions the answers come, and how many comparisons they cost."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.answers import Verdict, compare
from scaffolding_ext.answers.classes import AnswerClasses, Grouping

NUM_PROBES = 127
Decides = Callable[[str, str], Verdict]


def undetermined(a: str, b: str) -> Verdict:
    return Verdict.UNDETERMINED


def drive(steps: Any, answered: Callable[[list[tuple[str, str]]], list[Verdict]]) -> Grouping:
    """Return each step of a grouping whose pairs are answered so."""
    try:
        pairs = next(steps)
        while True:
            pairs = steps.send(answered(pairs))
    except StopIteration as stop:
        grouping: Grouping = stop.value
        return grouping


def grouped(
    answers: Sequence[str | None], decides: Decides = undetermined, known: AnswerClasses | None = None
) -> tuple[Grouping, list[tuple[str, str]]]:
    """Return the classes if open pairs are decided so, and the pairs that were open."""
    asked: list[tuple[str, str]] = []

    def answered(pairs: list[tuple[str, str]]) -> list[Verdict]:
        asked.extend(pairs)
        return [decides(*pair) for pair in pairs]

    return drive((known or AnswerClasses()).group(answers), answered), asked


def by_definition(answers: Sequence[str | None], decides: Decides) -> tuple[dict[str, str], int]:
    """The head of each distinct answer, shortest first, and how many answers nobody could tell from others."""
    heads: list[str] = []
    head_of: dict[str, str] = {}
    num_undetermined = 0
    for answer in sorted({answer for answer in answers if answer is not None}, key=lambda a: (len(a), a)):
        by_text = [compare(answer, head) for head in heads]
        sent = [
            decides(answer, head) if v is Verdict.UNDETERMINED else v for v, head in zip(by_text, heads, strict=True)
        ]
        verdicts = by_text if Verdict.EQUAL in by_text else sent
        head_of[answer] = heads[verdicts.index(Verdict.EQUAL)] if Verdict.EQUAL in verdicts else answer
        if head_of[answer] == answer:
            heads.append(answer)
            num_undetermined += Verdict.UNDETERMINED in verdicts
    return head_of, num_undetermined


def test_a_class_number_for_each_answer_in_order_of_first_appearance() -> None:
    assert grouped(["7", None, "1/2", "0.5", None, "7.0"]) == (Grouping([0, -1, 1, 1, -1, 0], 0), [])
    assert grouped([]) == (Grouping([], 0), [])
    assert grouped([None]) == (Grouping([-1], 0), [])


def test_open_pairs_are_asked_once_and_answered_by_the_caller() -> None:
    answers = ["x+1", "1+x", "x+1", "5", "5.0"]
    pairs = [("1+x", "5"), ("x+1", "5"), ("x+1", "1+x")]
    assert grouped(answers) == (Grouping([0, 1, 0, 2, 2], 2), pairs)
    assert grouped(answers, lambda a, b: Verdict.DIFFERENT) == (Grouping([0, 1, 0, 2, 2], 0), pairs)
    assert grouped(["x+1", "1+x", "1+x"], lambda a, b: Verdict.EQUAL) == (Grouping([0, 0, 0], 0), pairs[2:])


def test_what_is_known_is_not_asked_again() -> None:
    known = AnswerClasses()
    assert grouped(["x+1", "1+x"], undetermined, known) == (Grouping([0, 1], 1), [("x+1", "1+x")])
    assert grouped(["x+1", "1+x", "x+1", None], undetermined, known) == (Grouping([0, 1, 0, -1], 1), [])
    assert known.num_comparisons == 1


def test_a_shorter_answer_takes_the_place_of_a_head() -> None:
    known = AnswerClasses()
    assert grouped(["(2,1)", "(1,2)"], known=known)[0].classes == [0, 1]
    assert grouped(["(2,1)", "(1,2)", "1,2"], known=known)[0].classes == [0, 1, 1]
    # "2,1" equals "1,2" and "(2,1)", and "1,2" is the shortest that it equals
    assert grouped(["(2,1)", "(1,2)", "1,2", "2,1"], known=known)[0].classes == [0, 1, 1, 1]


ANY = ["1,2", "2,1", "(1,2)", "(2,1)", "x+1", "1+x", "(x+1)", "5", "5.0", "5 cm", "x=5", "y=5", "52_8", "52", None]


@settings(deadline=None, max_examples=300)
@given(
    answers=st.lists(st.sampled_from(ANY), max_size=12),
    seed=st.randoms(use_true_random=False),
    portions=st.lists(st.integers(1, 4), min_size=12, max_size=12),
)
def test_neither_the_order_of_the_answers_nor_their_portions_change_the_classes(
    answers: list[str | None], seed: random.Random, portions: list[int]
) -> None:
    """Also where equality is not transitive, and the caller's verdicts are not."""
    table: dict[frozenset[str], Verdict] = {}

    def decides(a: str, b: str) -> Verdict:
        return table.setdefault(frozenset((a, b)), seed.choice(list(Verdict)))

    head_of, num_undetermined = by_definition(answers, decides)
    known = AnswerClasses()
    shuffled = seed.sample(answers, len(answers))
    shown, found = 0, Grouping([], 0)
    while shown < len(shuffled):
        shown += portions[shown]
        found, _ = grouped(shuffled[:shown], decides, known)
    heads = list(dict.fromkeys(head_of[answer] for answer in shuffled if answer is not None))
    expected = [-1 if answer is None else heads.index(head_of[answer]) for answer in shuffled]
    assert found == Grouping(expected, num_undetermined)


@pytest.mark.parametrize("order", ["shortest first", "any", "longest first"])
def test_answers_of_few_classes_cost_comparisons_linear_in_their_number(order: str) -> None:
    spellings = [f"{number}.{'0' * zeros}" for zeros in range(43) for number in (1, 2, 3)][:NUM_PROBES]
    known = AnswerClasses()
    if order == "longest first":
        spellings.reverse()
    elif order == "any":
        random.Random(0).shuffle(spellings)
    for shown in range(1, NUM_PROBES + 1):
        found, _ = grouped(spellings[:shown], known=known)
    assert max(found.classes) == 2
    if order == "longest first":  # each answer is the head of its class when it comes: a pair of answers counts once
        assert known.num_comparisons <= NUM_PROBES * (NUM_PROBES - 1) // 2
    else:
        assert known.num_comparisons <= 6 * NUM_PROBES


@pytest.mark.parametrize("form", ["{}", "x^{}+1", "({},1)", r"\{{{},x,y\}}"])
def test_each_pair_of_different_answers_is_compared_at_most_once(form: str) -> None:
    known = AnswerClasses()
    answers = [form.format(number + 2) for number in range(NUM_PROBES)]
    for shown in range(1, NUM_PROBES + 1):
        before = known.num_comparisons
        grouped(answers[:shown], lambda a, b: Verdict.DIFFERENT, known)
        assert known.num_comparisons - before <= shown - 1
    assert known.num_comparisons == NUM_PROBES * (NUM_PROBES - 1) // 2


def test_others_have_their_turn_while_many_parts_are_compared() -> None:
    """An empty list of pairs says so; it comes the more often, the more there is to compare."""

    def num_turns(num_parts: int) -> int:
        answers = ["(" + ",".join(f"x^{part}{number}" for part in range(num_parts)) + ")" for number in range(30)]
        turns: list[None] = []

        def answered(pairs: list[tuple[str, str]]) -> list[Verdict]:
            turns.extend([] if pairs else [None])
            return [Verdict.DIFFERENT] * len(pairs)

        assert drive(AnswerClasses().group(answers), answered).classes == list(range(30))
        return len(turns)

    assert num_turns(2) < num_turns(20) < num_turns(40)
    assert num_turns(40) >= 30 * 29 // 2 * 40 // 1000
