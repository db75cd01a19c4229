"""Equality of two answers, part by part; an oracle decides about the expressions in the leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum

from scaffolding_ext.answers.forms import (
    LONGEST,
    Assignment,
    Based,
    Collection,
    Expression,
    Form,
    Number,
    Quantity,
    Read,
    Text,
    latex,
    read,
)


class Verdict(Enum):
    """Verdict on the equality of two answers."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNDETERMINED = "undetermined"


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """EQUAL if all are, DIFFERENT if any is, else UNDETERMINED."""
    outcome = Verdict.EQUAL
    for verdict in verdicts:
        if verdict is Verdict.DIFFERENT:
            return verdict
        if verdict is Verdict.UNDETERMINED:
            outcome = verdict
    return outcome


def any_of(verdicts: Iterable[Verdict]) -> Verdict:
    """EQUAL if any is, DIFFERENT if all are, else UNDETERMINED."""
    outcome = Verdict.DIFFERENT
    for verdict in verdicts:
        if verdict is Verdict.EQUAL:
            return verdict
        if verdict is Verdict.UNDETERMINED:
            outcome = verdict
    return outcome


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
    if a == b and len(a) > LONGEST:
        return Verdict.EQUAL
    return Comparator(units_implied, oracle).verdict(read(a), read(b))


class Comparator:
    """Compares answers that are already read: `compare` for comparing one answer with many.

    Args:
        units_implied: As in `compare`.
        oracle: As in `compare`.

    Attributes:
        num_steps: Parts of answers compared so far.
    """

    def __init__(self, units_implied: bool = False, oracle: Oracle | None = None) -> None:
        self._units_implied = units_implied
        self._oracle = oracle
        self.num_steps = 0

    def verdict(self, left: Read | None, right: Read | None) -> Verdict:
        """Compare two different answers; None stands for one that could not be read."""
        self.num_steps += 1
        if left is None or right is None:
            return Verdict.UNDETERMINED
        if left.normalized == right.normalized:
            return Verdict.EQUAL
        if left.shape is not None and left.shape == right.shape:
            verdict = Verdict.EQUAL if left.values == right.values else Verdict.DIFFERENT
        else:
            verdict = self._decide(left.form, right.form)
        if verdict is Verdict.DIFFERENT and left.digits == right.digits:
            return Verdict.UNDETERMINED  # "1,23" and "123": a list or a misplaced separator
        return verdict

    def _decide(self, a: Form, b: Form) -> Verdict:
        """Compare two forms; symmetric."""
        self.num_steps += 1
        if isinstance(a, Number) and isinstance(b, Number):
            same = a.value.as_integer_ratio() == b.value.as_integer_ratio()
            return Verdict.EQUAL if same else Verdict.DIFFERENT
        if type(a) is type(b) and a == b:
            return Verdict.EQUAL
        if _PLACES[type(a)] > _PLACES[type(b)]:
            a, b = b, a
        if isinstance(a, (Number, Expression)):
            return self._leaves(a, b)
        if isinstance(a, Text):
            return _text(a, b)
        if isinstance(a, Collection):
            return self._collections(a, b) if isinstance(b, Collection) else self._collection_and_other(a, b)
        if isinstance(a, Quantity):
            return self._quantity(a, b)
        if isinstance(a, Assignment):
            return self._assignment(a, b)
        return Verdict.DIFFERENT if isinstance(b, Based) and a.base == b.base else Verdict.UNDETERMINED

    def _asked(self, a: Form, b: Form) -> Verdict:
        """Ask the oracle; it cannot read words."""
        if self._oracle is None:
            return Verdict.UNDETERMINED
        written = latex(a), latex(b)
        return Verdict.UNDETERMINED if any("\x02" in side for side in written) else self._oracle(*written)

    def _leaves(self, a: Form, b: Form) -> Verdict:
        if _is_atom(a) and _is_atom(b):
            return Verdict.DIFFERENT
        is_opaque = any(isinstance(each, Expression) and each.opaque for each in (a, b))
        is_opaque = is_opaque or any(isinstance(each, Number) and each.ambiguous for each in (a, b))
        return Verdict.UNDETERMINED if is_opaque else self._asked(a, b)

    def _assignment(self, a: Assignment, b: Form) -> Verdict:
        if not isinstance(b, Assignment):
            if isinstance(b, Expression) and not b.opaque and any(sign in b.latex for sign in "=<>"):
                return self._asked(a, b)
            return self._decide(a.value, b)
        verdict = self._decide(a.value, b.value)
        return verdict if a.name == b.name else Verdict.UNDETERMINED

    def _quantity(self, a: Quantity, b: Form) -> Verdict:
        if isinstance(b, Text):
            return Verdict.UNDETERMINED
        other = b.value if isinstance(b, Quantity) else b
        verdict = self._decide(a.value, other)
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
        return all_of(map(self._decide, a, b))

    def _unordered(self, a: Collection, b: Collection) -> Verdict:
        """Compare as sets: each part must equal some part of the other, both ways."""
        if a.numbers is not None and b.numbers is not None:
            return Verdict.EQUAL if a.numbers == b.numbers else Verdict.DIFFERENT
        if a.has_two_signs or b.has_two_signs:
            return self._asked(a, b)
        left, right = a.parts - b.parts, b.parts - a.parts
        if self._oracle is None and len(left) * len(b.items) + len(right) * len(a.items) > _MOST_PAIRS:
            return Verdict.UNDETERMINED
        return all_of(
            any_of(self._decide(part, other) for other in others.items)
            for parts, own, others in ((a.items, left, b), (b.items, right, a))
            for part in parts
            if part in own
        )

    def _collection_and_other(self, a: Collection, b: Form) -> Verdict:
        if isinstance(b, Number | Based) and a.brackets != "{}":
            return Verdict.DIFFERENT if len(a.items) > 1 else Verdict.UNDETERMINED
        if isinstance(b, Expression) and b.opaque:
            return Verdict.UNDETERMINED
        return self._asked(a, b)


# The form with the lower rank decides how a pair is compared.
_PLACES = {Assignment: 0, Quantity: 1, Text: 2, Collection: 3, Based: 4, Number: 5, Expression: 6}


def _is_atom(form: Form) -> bool:
    """True for a number or the name of a single variable."""
    return isinstance(form, Number) or (isinstance(form, Expression) and len(form.latex) == 1 and form.latex.isalpha())


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
        return Verdict.DIFFERENT  # one name and several
    return Verdict.UNDETERMINED
