"""Equality of two answers, part by part; an oracle decides about expressions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import Enum

from scaffolding_ext.answers.forms import LONGEST, Form, form_of, normalize
from scaffolding_ext.answers.names import spelled


class Verdict(Enum):
    """The outcome of a comparison; EQUAL and DIFFERENT are certain."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNDETERMINED = "undetermined"


Oracle = Callable[[str, str], Verdict]
_MOST_PAIRS = 32  # pairs of set elements compared without an oracle; bounds the time


def compare(a: str, b: str, *, units_implied: bool = False, oracle: Oracle | None = None) -> Verdict:
    """Decide equality from the text, without symbolic algebra.

    Numbers are compared exactly; tuples and intervals part by part, including brackets; sets and bare lists in any
    order; words ignoring case. Single letters ignore case only if they can be options (A to E).

    Args:
        a: An answer.
        b: Another.
        units_implied: True if a number equals the same number with a unit: 5 and 5 cm, 50 and 50 %. Never 0.5 and 50 %.
        oracle: Decides about two LaTeX expressions whose equality the text does not show. With None they stay
            undetermined, and so do long sets that contain them.
    """
    return Comparator(units_implied, oracle).verdict(a, b)


class Comparator:
    """Compares pairs of answers as `compare` does."""

    def __init__(self, units_implied: bool = False, oracle: Oracle | None = None) -> None:
        self._units_implied, self._oracle = units_implied, oracle

    def verdict(self, a: str, b: str) -> Verdict:
        if len(a) > LONGEST or len(b) > LONGEST:
            return Verdict.EQUAL if a == b else Verdict.UNDETERMINED
        left, right = normalize(a), normalize(b)
        if left == right or not left or not right:
            return Verdict.EQUAL if left and right else Verdict.UNDETERMINED
        verdict = self._decide(form_of(left), form_of(right))
        if verdict is Verdict.DIFFERENT and _digits(left) == _digits(right):
            return Verdict.UNDETERMINED  # "1,23" and "123": a list or a misplaced separator
        return verdict

    def _decide(self, a: Form, b: Form) -> Verdict:
        """Compare two forms; symmetric."""
        if a == b:
            return Verdict.EQUAL
        if a.is_name or b.is_name:
            same = len({form.word if form.is_name else spelled(form.latex) for form in (a, b)}) == 1
            return Verdict.EQUAL if same else Verdict.UNDETERMINED
        if a.name or b.name:
            return self._named(a, b)
        if a.unit or b.unit:
            return self._with_units(a, b)
        if a.word is not None or b.word is not None:
            return _words(a, b) if a.word is not None else _words(b, a)
        if a.items or b.items:
            return self._collections(a, b) if a.items else self._collections(b, a)
        if a.is_atom and b.is_atom:
            return Verdict.EQUAL if a.value == b.value is not None else Verdict.DIFFERENT
        return self._asked(a, b)

    def _asked(self, a: Form, b: Form) -> Verdict:
        if self._oracle is None or a.is_opaque or b.is_opaque:
            return Verdict.UNDETERMINED
        return self._oracle(*(f"{form.name}={form.latex}" if form.name else form.latex for form in (a, b)))

    def _named(self, a: Form, b: Form) -> Verdict:
        if a.name != b.name and a.name and b.name:
            return Verdict.UNDETERMINED
        other = b if a.name else a
        if a.name != b.name and not other.items and any(sign in other.latex for sign in "=<>"):
            return self._asked(a, b)
        return self._decide(a._replace(name=""), b._replace(name=""))

    def _with_units(self, a: Form, b: Form) -> Verdict:
        if a.unit != b.unit:
            is_implied = self._units_implied and not (a.unit and b.unit) and "base" not in a.unit + b.unit
            if not is_implied or a.word is not None or b.word is not None:
                return Verdict.UNDETERMINED
        return self._decide(a._replace(unit=""), b._replace(unit=""))

    def _collections(self, a: Form, b: Form) -> Verdict:
        """Compare an answer of parts with another answer: sets and bare lists in any order, tuples in theirs.

        `U` stands for a union of intervals. Only a set may equal a scalar, such as the solution x = 5 as {5}.
        """
        if not b.items:
            if b.value is not None and a.brackets != "{}":
                return Verdict.DIFFERENT if len(a.items) > 1 else Verdict.UNDETERMINED
            return self._asked(a, b)
        kinds = {a.brackets, b.brackets}
        if kinds <= {"", "{}"} or kinds == {"U"}:
            return self._unordered(a, b)
        if len(kinds) == 1 or kinds == {"", "()"}:
            decided = map(self._decide, a.items, b.items)
            return _joint(decided, Verdict.DIFFERENT) if len(a.items) == len(b.items) else Verdict.DIFFERENT
        # A bare list may be meant as any of the others, a union be one interval; other brackets differ in meaning.
        return Verdict.UNDETERMINED if "" in kinds or "U" in kinds else Verdict.DIFFERENT

    def _unordered(self, a: Form, b: Form) -> Verdict:
        """Compare as sets: each part must equal some part of the other, both ways."""
        if "\\pm" in a.latex + b.latex:  # a part that stands for two values
            return self._asked(a, b)
        left, right = set(a.items) - set(b.items), set(b.items) - set(a.items)
        if self._oracle is None and len(left) * len(b.items) + len(right) * len(a.items) > _MOST_PAIRS:
            is_plain = all(part.value is not None for part in (*a.items, *b.items))
            return Verdict.DIFFERENT if is_plain else Verdict.UNDETERMINED
        found = (
            _joint((self._decide(part, other) for other in others), Verdict.EQUAL)
            for parts, own, others in ((a.items, left, b.items), (b.items, right, a.items))
            for part in parts
            if part in own
        )
        return _joint(found, Verdict.DIFFERENT)


def _joint(verdicts: Iterable[Verdict], decisive: Verdict) -> Verdict:
    """`decisive` if any verdict is, else UNDETERMINED if any is, else the opposite."""
    outcome = Verdict.EQUAL if decisive is Verdict.DIFFERENT else Verdict.DIFFERENT
    for verdict in verdicts:
        if verdict is decisive:
            return verdict
        if verdict is Verdict.UNDETERMINED:
            outcome = verdict
    return outcome


def _digits(normalized: str) -> str:
    """The answer without commas, spaces and leading zeros if it begins with a digit."""
    return re.sub("[, ]", "", normalized).lstrip("0") if normalized[0].isdigit() else normalized


def _words(a: Form, b: Form) -> Verdict:
    """Compare words with another form."""
    if b.word is not None and a.word is not None:
        left, right = a.word.replace(" ", ""), b.word.replace(" ", "")
        if left == right:
            return Verdict.EQUAL
        permuted = 1 < len(left) < 4 and sorted(left) == sorted(right)  # abc and cab may be products
        return Verdict.UNDETERMINED if permuted else Verdict.DIFFERENT
    several_words = len(b.items) > 1 and all(item.word is not None for item in b.items)  # one name and several
    return Verdict.DIFFERENT if b.is_atom or several_words else Verdict.UNDETERMINED
