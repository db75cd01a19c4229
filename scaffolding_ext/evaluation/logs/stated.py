"""Read the answer that a field of a log states."""

from __future__ import annotations

import re

from scaffolding_ext.answers import extract
from scaffolding_ext.answers.extraction import shown

_LETTER = re.compile(r"(?:[Oo]ption |[Cc]hoice )?[\s(\[*]*([A-Ja-j])[\s)\].:*]*")  # "(b)", "B.", "**B**", "option B"
_LONGEST_ANSWER = 100  # characters of an answer without a phrase or a box around it


def stated(field: str) -> str | None:
    """Return the answer in a field that may hold a whole text or only its answer.

    Scorers differ: some keep what they read, others the text that they searched. A short line in which nothing marks an
    answer is the answer; a longer text has none.
    """
    line = shown(field).strip()
    answer = extract(line)
    is_short = len(line) <= _LONGEST_ANSWER and "\n" not in line
    if answer is None and line and is_short and "\\boxed" not in line:
        return line
    return answer or extract(field)  # perhaps only its thinking states one


def letter_in(field: str) -> str | None:
    """Return the letter of an option if the field is nothing else, in upper case."""
    found = _LETTER.fullmatch(field)
    return None if found is None else found[1].upper()
