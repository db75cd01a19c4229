"""Whether an answer is right, by the one notion of equality that votes and probes use."""

from __future__ import annotations

from typing import NamedTuple

from scaffolding_ext.answers import Verdict, equal


class Score(NamedTuple):
    """The score of one answer.

    Attributes:
        correct: Whether it counts as right.
        verdict: `"equal"`, `"different"` or `"undetermined"`; None where there is no answer.
    """

    correct: bool
    verdict: str | None


def score(answer: str | None, target: str, *, units_implied: bool = False) -> Score:
    """Score an answer; no answer is wrong, and so is one that nothing here can tell to be equal. It may block.

    What `answers.equal` leaves undetermined is right only where both are the same string; the verdict of the others
    stays `"undetermined"`, so that a report can say how many there are.

    Args:
        answer: What was answered.
        target: What is right.
        units_implied: Whether the question implies the unit, so that 5 cm is right where the target is 5.
    """
    if answer is None:
        return Score(False, None)
    verdict = equal(answer, target, units_implied=units_implied)
    if verdict is Verdict.UNDETERMINED and answer.strip() == target.strip():
        verdict = Verdict.EQUAL
    return Score(verdict is Verdict.EQUAL, verdict.value)
