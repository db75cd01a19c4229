"""Equality of two answers by their parts; what stands in the leaves is left to an oracle."""

from __future__ import annotations

from collections.abc import Callable

from scaffolding_ext.answers.forms import (
    LONGEST,
    Assignment,
    Based,
    Collection,
    Expression,
    Form,
    Number,
    Quantity,
    Text,
    latex,
    read,
)
from scaffolding_ext.answers.verdict import Verdict, all_of, any_of

Oracle = Callable[[str, str], Verdict]


def undecided(left: str, right: str) -> Verdict:
    """The oracle of the fast path: it decides nothing."""
    return Verdict.UNDETERMINED


def compare(a: str, b: str, *, units_implied: bool = False, oracle: Oracle = undecided) -> Verdict:
    """Decide equality by what is written, without symbolic algebra, in time linear in the length.

    Numbers are compared exactly; tuples and intervals part by part, with their brackets; sets and bare lists in any
    order; words without regard to case, single letters only where they can be options (A to E).

    Args:
        a: An answer.
        b: Another.
        units_implied: Whether a number says the same with and without its unit: 5 and 5 cm, 50 and 50 %. Never 0.5
            and 50 %.
        oracle: Decides about two expressions (as LaTeX) whose equality is not seen from their text.
    """
    if len(a) > LONGEST or len(b) > LONGEST:
        return Verdict.EQUAL if a == b else Verdict.UNDETERMINED
    left, right = read(a), read(b)
    if left is None or right is None:
        return Verdict.UNDETERMINED
    if left.normalized == right.normalized:
        return Verdict.EQUAL
    verdict = _Comparison(units_implied, oracle).decide(left.form, right.form)
    if verdict is Verdict.DIFFERENT and _digits(left.normalized) == _digits(right.normalized):
        return Verdict.UNDETERMINED  # "1,23" and "123": a list, or a separator misplaced
    return verdict


def _digits(normalized: str) -> str:
    return normalized.replace(",", "").replace(" ", "").lstrip("0") if normalized[0].isdigit() else normalized


class _Comparison:
    def __init__(self, units_implied: bool, oracle: Oracle) -> None:
        self._units_implied = units_implied
        self._oracle = oracle

    def decide(self, a: Form, b: Form) -> Verdict:
        """Whether two forms are equal; symmetric."""
        if a == b:
            return Verdict.EQUAL
        for left, right in ((a, b), (b, a)):
            if isinstance(left, Assignment):
                return self._assignment(left, right)
        for left, right in ((a, b), (b, a)):
            if isinstance(left, Quantity):
                return self._quantity(left, right)
        if isinstance(a, Collection) and isinstance(b, Collection):
            return self._collections(a, b)
        for left, right in ((a, b), (b, a)):
            if isinstance(left, Text):
                return _text(left, right)
        for left, right in ((a, b), (b, a)):
            if isinstance(left, Collection):
                return self._collection_and_other(left, right)
            if isinstance(left, Based):
                return (
                    Verdict.DIFFERENT if isinstance(right, Based) and left.base == right.base else Verdict.UNDETERMINED
                )
        return self._leaves(a, b)

    def _leaves(self, a: Form, b: Form) -> Verdict:
        if isinstance(a, Number) and isinstance(b, Number):
            return Verdict.DIFFERENT
        opaque = any(isinstance(side, Expression) and side.opaque for side in (a, b))
        names = [isinstance(side, Expression) and len(side.latex) == 1 and side.latex.isalpha() for side in (a, b)]
        if all(name or isinstance(side, Number) for name, side in zip(names, (a, b), strict=True)):
            return Verdict.DIFFERENT
        return Verdict.UNDETERMINED if opaque else self._oracle(latex(a), latex(b))

    def _assignment(self, a: Assignment, b: Form) -> Verdict:
        if not isinstance(b, Assignment):
            if isinstance(b, Expression) and not b.opaque and any(sign in b.latex for sign in "=<>"):
                return self._oracle(latex(a), latex(b))
            return self.decide(a.value, b)
        verdict = self.decide(a.value, b.value)
        return verdict if a.name == b.name else Verdict.UNDETERMINED

    def _quantity(self, a: Quantity, b: Form) -> Verdict:
        if isinstance(b, Text):
            return Verdict.UNDETERMINED
        other = b.value if isinstance(b, Quantity) else b
        verdict = self.decide(a.value, other)
        same = isinstance(b, Quantity) and a.unit == b.unit
        if same or (self._units_implied and not isinstance(b, Quantity)):
            return verdict
        return Verdict.UNDETERMINED

    def _collections(self, a: Collection, b: Collection) -> Verdict:
        kinds = {a.brackets, b.brackets}
        if kinds <= {"", "{}", "U"} and ("U" not in kinds or len(kinds) == 1):
            return self._unordered(a, b)
        if len(kinds) == 1 or kinds == {"", "()"}:
            return self._ordered(a.items, b.items)
        return Verdict.UNDETERMINED if "" in kinds or "U" in kinds else Verdict.DIFFERENT

    def _ordered(self, a: tuple[Form, ...], b: tuple[Form, ...]) -> Verdict:
        if len(a) != len(b):
            return Verdict.DIFFERENT
        return all_of(self.decide(left, right) for left, right in zip(a, b, strict=True))

    def _unordered(self, a: Collection, b: Collection) -> Verdict:
        """Each part of one equals a part of the other, both ways."""
        written = latex(a), latex(b)
        if any("\\pm" in side for side in written):  # one part that stands for two
            return Verdict.UNDETERMINED if any("\x02" in side for side in written) else self._oracle(*written)
        return all_of(
            any_of(self.decide(left, right) for right in others.items)
            for parts, others in ((a, b), (b, a))
            for left in parts.items
        )

    def _collection_and_other(self, a: Collection, b: Form) -> Verdict:
        if isinstance(b, Number | Based) and a.brackets != "{}":
            return Verdict.DIFFERENT if len(a.items) > 1 else Verdict.UNDETERMINED
        if isinstance(b, Expression) and b.opaque:
            return Verdict.UNDETERMINED
        written = latex(a)
        return Verdict.UNDETERMINED if "\x02" in written else self._oracle(written, latex(b))


def _text(a: Text, b: Form) -> Verdict:
    if isinstance(b, Number):
        return Verdict.DIFFERENT
    if isinstance(b, Text):
        left, right = (side.words.replace(" ", "") for side in (a, b))
        if left == right:
            return Verdict.EQUAL
        permuted = 1 < len(left) < 4 and sorted(left) == sorted(right)  # abc and cab may be products
        return Verdict.UNDETERMINED if permuted else Verdict.DIFFERENT
    if isinstance(b, Expression) and len(b.latex) == 1:
        return Verdict.DIFFERENT
    if isinstance(b, Collection) and len(b.items) > 1 and all(isinstance(item, Text) for item in b.items):
        return Verdict.DIFFERENT  # one name, and several
    return Verdict.UNDETERMINED
