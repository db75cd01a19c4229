"""Classes of equal answers. Verdicts are remembered, so a later call compares only new pairs."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple

from scaffolding_ext.answers.comparison import Comparator, Verdict

Pair = tuple[str, str]
_CHARACTERS_PER_TURN = 2_000  # that are read or compared, in some milliseconds


class Grouping(NamedTuple):
    """Classes of equal answers.

    Attributes:
        classes: A class number for each answer, in order of first appearance, -1 for None.
        num_undetermined: Distinct answers that count as different only because a verdict is missing.
    """

    classes: list[int]
    num_undetermined: int


class AnswerClasses:
    """Groups answers, shortest first: each joins the first head that it equals, or becomes a head.

    The text decides before the caller's verdicts do; undetermined counts as different. The classes depend on the set of
    answers only, not on their order, even if equality is not transitive.

    Args:
        units_implied: True if a number equals the same number with a unit (see `compare`).

    Attributes:
        num_comparisons: Pairs compared by their text.
    """

    def __init__(self, units_implied: bool = False) -> None:
        self.num_comparisons = 0
        self._comparator = Comparator(units_implied)
        self._verdicts: dict[Pair, Verdict] = {}  # of the text
        self._told: dict[Pair, Verdict] = {}  # of the caller

    def group(self, answers: Sequence[str | None]) -> Generator[list[Pair], list[Verdict], Grouping]:
        """Group all answers so far; None equals nothing.

        Yields:
            Pairs whose text leaves equality open; send a verdict for each. An empty list lets other work run.
        """
        num_characters = 0
        heads: list[str] = []
        head_of: dict[str, str] = {}
        num_undetermined = 0
        for answer in sorted({a for a in answers if a is not None}, key=lambda a: (len(a), a)):
            num_characters += len(answer)
            for head in heads:
                if (answer, head) not in self._verdicts:
                    self._verdicts[answer, head] = self._comparator.verdict(answer, head)
                    self.num_comparisons += 1
                    num_characters += len(head)
                if num_characters >= _CHARACTERS_PER_TURN:
                    num_characters = 0
                    yield []
                if self._verdicts[answer, head] is Verdict.EQUAL:
                    head_of[answer] = head
                    break
            else:
                pairs = [(answer, head) for head in heads if self._verdicts[answer, head] is Verdict.UNDETERMINED]
                if new := [pair for pair in pairs if pair not in self._told]:
                    self._told |= zip(new, (yield new), strict=True)
                told = [self._told[pair] for pair in pairs]
                head_of[answer] = pairs[told.index(Verdict.EQUAL)][1] if Verdict.EQUAL in told else answer
                if head_of[answer] == answer:
                    heads.append(answer)
                    num_undetermined += Verdict.UNDETERMINED in told
        numbers: dict[str, int] = {}
        classes = [-1 if a is None else numbers.setdefault(head_of[a], len(numbers)) for a in answers]
        return Grouping(classes, num_undetermined)
