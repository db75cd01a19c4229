"""Score answers by the equality that votes and probes use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scaffolding_ext.answers import Verdict, compare, equal, extract

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # of options


class Score(NamedTuple):
    """Score of one answer.

    Attributes:
        verdict: `"equal"`, `"different"` or `"undetermined"`; None without an answer.
    """

    correct: bool
    verdict: str | None


def letter_of(answer: str | None, options: Sequence[str], text: str = "") -> str | None:
    """Return the letter of the option that an answer names by letter or text; None if it names none.

    Args:
        answer: The answer; None reads the text.
        options: Option texts, lettered from A.
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
    """Return the answer that a target states: 11 for "The answer is 11"; otherwise the whole target."""
    return extract(target) or target


def score(answer: str | None, target: str, *, units_implied: bool = False) -> Score:
    """Score an answer; a missing or undetermined answer is wrong. It may block.

    The target is parsed like an answer (`answer_of_target`). If `answers.equal` leaves a pair undetermined, it is right
    only if both strings are the same; otherwise the verdict stays `"undetermined"`, so that reports can count such
    answers.

    Args:
        units_implied: The question implies the unit, so that 5 cm is right if the target is 5.
    """
    return score_quickly(answer, target, units_implied=units_implied) or _scored(
        str(answer), target, equal(str(answer), answer_of_target(target), units_implied=units_implied)
    )


def score_quickly(answer: str | None, target: str, *, units_implied: bool = False) -> Score | None:
    """Like `score`, but never blocks; None if `score` would need the algebra system."""
    if answer is None:
        return Score(False, None)
    verdict = compare(answer, answer_of_target(target), units_implied=units_implied)
    return None if verdict is Verdict.UNDETERMINED else _scored(answer, target, verdict)


def _scored(answer: str, target: str, verdict: Verdict) -> Score:
    if verdict is Verdict.UNDETERMINED and answer.strip() == answer_of_target(target).strip():
        verdict = Verdict.EQUAL
    return Score(verdict is Verdict.EQUAL, verdict.value)
