"""The three outcomes of a comparison."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Verdict(Enum):
    """Whether two answers are equal."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNDETERMINED = "undetermined"


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """EQUAL where all are, DIFFERENT where one is, else UNDETERMINED."""
    outcome = Verdict.EQUAL
    for verdict in verdicts:
        if verdict is Verdict.DIFFERENT:
            return verdict
        if verdict is Verdict.UNDETERMINED:
            outcome = verdict
    return outcome


def any_of(verdicts: Iterable[Verdict]) -> Verdict:
    """EQUAL where one is, DIFFERENT where all are, else UNDETERMINED."""
    outcome = Verdict.DIFFERENT
    for verdict in verdicts:
        if verdict is Verdict.EQUAL:
            return verdict
        if verdict is Verdict.UNDETERMINED:
            outcome = verdict
    return outcome
