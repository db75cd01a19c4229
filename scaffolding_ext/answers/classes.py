"""Numbers the classes of equal answers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from scaffolding_ext.answers.verdict import Verdict

Pair = tuple[str, str]


class Grouping(NamedTuple):
    """Classes of equal answers.

    Attributes:
        classes: A class number for each answer, in order of first appearance, -1 for None.
        num_undetermined: Distinct answers that count as different from others by want of a verdict.
    """

    classes: list[int]
    num_undetermined: int


def grouping(
    answers: Sequence[str | None], fast: Callable[[str, str], Verdict]
) -> Generator[list[Pair], list[Verdict], Grouping]:
    """Group answers into classes, by verdicts that the caller sends for the pairs asked.

    The distinct answers are taken in an order of their own, shorter ones first. Each joins the first class whose
    shortest answer it equals by the fast path, else the first whose shortest answer it equals by the verdicts sent;
    undetermined counts as different. So the classes do not depend on the order of the answers, also where equality is
    not transitive, and n answers with m classes take at most n·m comparisons.

    Args:
        answers: The answers; None equals nothing.
        fast: The verdict of the text alone.

    Yields:
        For each distinct answer the pairs that the fast path leaves open, or none; none is asked twice.
    """
    num_undetermined = 0
    class_of: dict[str, int] = {}
    representatives: list[str] = []
    distinct = {answer for answer in answers if answer is not None}
    for answer in sorted(distinct, key=lambda answer: (len(answer), answer)):
        verdicts = [fast(answer, representative) for representative in representatives]
        if Verdict.EQUAL not in verdicts:
            is_open = [verdict is Verdict.UNDETERMINED for verdict in verdicts]
            sent = iter((yield [(answer, representatives[i]) for i, asked in enumerate(is_open) if asked]))
            verdicts = [next(sent) if asked else Verdict.DIFFERENT for asked in is_open]
        else:
            yield []
        joined = verdicts.index(Verdict.EQUAL) if Verdict.EQUAL in verdicts else len(representatives)
        if joined == len(representatives):
            representatives.append(answer)
            num_undetermined += Verdict.UNDETERMINED in verdicts
        class_of[answer] = joined
    numbers: dict[int, int] = {}
    classes = [-1 if answer is None else numbers.setdefault(class_of[answer], len(numbers)) for answer in answers]
    return Grouping(classes, num_undetermined)
