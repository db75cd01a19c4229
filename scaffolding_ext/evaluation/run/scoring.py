"""Scores answers by the equality that votes and probes use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scaffolding_ext.answers import Verdict, compare, equal, extract

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # of options


class Score(NamedTuple):
    """The score of one answer.

    Attributes:
        correct: Whether it counts as right.
        verdict: `"equal"`, `"different"` or `"undetermined"`; None where there is no answer.
    """

    correct: bool
    verdict: str | None


def letter_of(answer: str | None, options: Sequence[str], text: str = "") -> str | None:
    """The letter of the option that an answer names, by its letter or by its text; None where it names none.

    Args:
        answer: What was answered; None looks at the text.
        options: Texts of the options, which the letters from A on name.
        text: The whole output.
    """
    letters = LETTERS[: len(options)]
    if answer is None:
        return extract(text, choices=letters)
    by_text = [letter for letter, option in zip(letters, options, strict=True) if _same_words(answer, option)]
    if len(by_text) == 1:
        return by_text[0]
    return extract(f"\\boxed{{{answer}}}", choices=letters)


def _same_words(answer: str, option: str) -> bool:
    return answer.strip().casefold() == option.casefold() or compare(answer, option) is Verdict.EQUAL


def answer_of_target(target: str) -> str:
    """The answer that a target states: "The answer is 11" says 11, and what states nothing says all of it."""
    return extract(target) or target


def score(answer: str | None, target: str, *, units_implied: bool = False) -> Score:
    """Score an answer; no answer is wrong, and so is one that nothing here can tell to be equal. It may block.

    The target is read as answers are (`answer_of_target`). What `answers.equal` leaves undetermined is right only where
    both are the same string; the verdict of the others stays `"undetermined"`, so that a report can say how many there
    are.

    Args:
        answer: What was answered.
        target: What is right.
        units_implied: Whether the question implies the unit, so that 5 cm is right where the target is 5.
    """
    return score_quickly(answer, target, units_implied=units_implied) or _scored(
        str(answer), target, equal(str(answer), answer_of_target(target), units_implied=units_implied)
    )


def score_quickly(answer: str | None, target: str, *, units_implied: bool = False) -> Score | None:
    """As `score`, where what is written decides; None where `score` would ask the algebra system. It never blocks."""
    if answer is None:
        return Score(False, None)
    verdict = compare(answer, answer_of_target(target), units_implied=units_implied)
    return None if verdict is Verdict.UNDETERMINED else _scored(answer, target, verdict)


def _scored(answer: str, target: str, verdict: Verdict) -> Score:
    if verdict is Verdict.UNDETERMINED and answer.strip() == answer_of_target(target).strip():
        verdict = Verdict.EQUAL
    return Score(verdict is Verdict.EQUAL, verdict.value)
