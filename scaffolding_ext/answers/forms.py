"""The parts of an answer: numbers, quantities, words, intervals, tuples, sets, matrices, and expressions as leaves.

Reading an answer takes time linear in its length and computes nothing but fractions of what is written.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import NamedTuple

from scaffolding_ext.answers.notation import WORDS, normalize, to_number

LONGEST = 500  # characters; longer answers are equal only as strings
OPTIONS = "ABCDEabcde"
_MAX_DEPTH = 4
_MAX_PARTS = 64
_OPTION = re.compile(r"[\x02(]*([A-Za-z])[\x03).:]*")
_ASSIGNED = re.compile(r"\\?[A-Za-z]+(?:_(?:\w|\{[^{}]*\}|\\[a-z]+))?'*(?:\([A-Za-z](?:,[A-Za-z])*\))?|\([^()=\d]*\)")
_ASSIGNMENT = re.compile(r"(?<![<>!:])=(?!=)|\\in(?![a-z])")
_WORDS = re.compile(rf"{WORDS}(?:\^\{{?(\d)\}}?)?")
_EXPONENT = re.compile(r"\^\{?(\d)\}?")
_UNIT_SIGN = re.compile(r"\\\$|\\?%|\^\{?\\circ\}?|°|€|£")
_BASED = re.compile(r"([+-]?[\w.]+)_\{?(\d+)\}?")
_AND = re.compile(r"\x02(?:and|or)\x03")
_MATRIX = re.compile(r"\\begin\{([pb]?)matrix\}(.*)\\end\{\1matrix\}", re.DOTALL)
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_LONG_NAME = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{4,}")
_OPAQUE = re.compile(r"[\x02\x03'%#&~\"]|(?<![_^])\d \d")


@dataclass(frozen=True)
class Number:
    """An exact number."""

    value: Fraction


@dataclass(frozen=True)
class Based:
    """A numeral with its base written below it."""

    numeral: str
    base: str


@dataclass(frozen=True)
class Text:
    """Words, in lower case; an option's letter is one."""

    words: str


@dataclass(frozen=True)
class Quantity:
    """A value with a unit, a per-cent sign, or words around it."""

    value: Form
    unit: str


@dataclass(frozen=True)
class Assignment:
    """A value with the name of what it is the value of, as in `x = 5`."""

    name: str
    value: Form


@dataclass(frozen=True)
class Collection:
    r"""Parts between brackets.

    Attributes:
        brackets: The two that were written; `""` for a bare list, `"{}"` for a set, `"U"` for a union of intervals,
            `"matrix"` for a matrix, whose items are rows.
        items: The parts.
    """

    brackets: str
    items: tuple[Form, ...]

    @cached_property
    def numbers(self) -> frozenset[Fraction] | None:
        """The values of its parts; None where one is no number."""
        values = [item.value for item in self.items if isinstance(item, Number)]
        return frozenset(values) if len(values) == len(self.items) else None

    @cached_property
    def parts(self) -> frozenset[Form]:
        """Its parts, each once."""
        return frozenset(self.items)

    @cached_property
    def has_two_signs(self) -> bool:
        """Whether one of its parts stands for two: it holds a plus-minus sign."""
        return "\\pm" in latex(self)


@dataclass(frozen=True)
class Expression:
    """Anything else, as normalised LaTeX; `opaque` where no algebra system can be trusted to read it."""

    latex: str
    opaque: bool = False


Form = Number | Based | Text | Quantity | Assignment | Collection | Expression


class Read(NamedTuple):
    """An answer as it was read.

    Attributes:
        normalized: Its normal form as a string.
        form: Its parts.
        digits: The normal form without commas, spaces and leading zeros, where it begins with a digit.
        shape: How it is built, where it is built of numbers alone; else None.
        values: Its numbers. Two answers of one shape are equal where their values are, and else different.
    """

    normalized: str
    form: Form
    digits: str
    shape: str | None
    values: Hashable


def read(answer: str) -> Read | None:
    """The parts of an answer; None where it says nothing, or has more than `LONGEST` characters."""
    return _read_short(answer) if len(answer) <= LONGEST else None


@lru_cache(maxsize=4096)
def _read_short(answer: str) -> Read | None:
    normalized = normalize(answer)
    if not normalized:
        return None
    digits = normalized.replace(",", "").replace(" ", "").lstrip("0") if normalized[0].isdigit() else normalized
    form = _read(normalized, _MAX_DEPTH)
    return Read(normalized, form, digits, *(_shape_and_values(form) or (None, None)))


def _shape_and_values(form: Form) -> tuple[str, Hashable] | None:
    """How a form is built of numbers alone, and these numbers; None for any other form."""
    match form:
        case Number(value):
            return "n", value.as_integer_ratio()
        case Quantity(value, unit):
            inner = _shape_and_values(value)
            return None if inner is None else (f"{inner[0]} {unit}", inner[1])
        case Collection("" | "{}"):
            return None if form.numbers is None else ("{}", form.numbers)
        case Collection(brackets, items) if brackets != "U":
            parts = [_shape_and_values(item) for item in items]
            known = [part for part in parts if part is not None]
            if len(known) == len(parts):
                shapes = ",".join(shape for shape, _ in known)
                return f"{brackets}{shapes};", tuple(values for _, values in known)
    return None


def _read(text: str, depth: int) -> Form:
    value = to_number(text)
    if value is not None:
        return Number(value)
    letter = _OPTION.fullmatch(text)
    if letter:
        return Text(letter[1].lower()) if letter[1] in OPTIONS else Expression(letter[1])
    if depth == 0 or not text:
        return Expression(text, opaque=True)
    return (
        _matrix(text, depth)
        or _list(text, depth)
        or _assignment(text, depth)
        or _bracketed(text, depth)
        or _union(text, depth)
        or _based(text)
        or _quantity_or_words(text, depth)
        or Expression(text, opaque=bool(_OPAQUE.search(text) or _LONG_NAME.search(text)))
    )


def _matrix(text: str, depth: int) -> Form | None:
    matrix = _MATRIX.fullmatch(text)
    if matrix is None or "\\begin" in matrix[2]:
        return None
    rows = [row for row in re.split(r"\\\\(?:\[[^\]]*\])?", matrix[2]) if row.strip()]
    return Collection(
        "matrix",
        tuple(Collection("row", tuple(_read(cell.strip(), depth - 1) for cell in row.split("&"))) for row in rows),
    )


def _list(text: str, depth: int) -> Form | None:
    parts = split_top_level(_AND.sub(",", text), ",;")
    parts = [part for part in parts if part]
    if len(parts) > _MAX_PARTS:
        return Expression(text, opaque=True)
    return Collection("", tuple(_read(part, depth - 1) for part in parts)) if len(parts) > 1 else None


def _assignment(text: str, depth: int) -> Form | None:
    signs = list(_ASSIGNMENT.finditer(text))
    if len(signs) != 1:
        return None
    name, value = text[: signs[0].start()].strip(), text[signs[0].end() :].strip()
    return Assignment(name, _read(value, depth - 1)) if value and _ASSIGNED.fullmatch(name) else None


def _bracketed(text: str, depth: int) -> Form | None:
    bare = text.replace("\\{", "{").replace("\\}", "}") if text.startswith("\\{") and text.endswith("\\}") else text
    if bare[0] not in "([{" or bare[-1] not in ")]}" or _closing(bare) != len(bare) - 1:
        return None
    inner = bare[1:-1].strip()
    parts = split_top_level(inner, ",;")
    if not inner or not all(parts) or len(parts) > _MAX_PARTS:
        return None
    if bare[0] == "{" and text is not bare:
        return Collection("{}", tuple(_read(part, depth - 1) for part in parts))
    if len(parts) > 1:
        return Collection(bare[0] + bare[-1], tuple(_read(part, depth - 1) for part in parts))
    return _read(inner, depth - 1) if bare[0] + bare[-1] in ("()", "{}") else None


def _union(text: str, depth: int) -> Form | None:
    parts = text.split("\\cup")
    if len(parts) > _MAX_PARTS:
        return Expression(text, opaque=True)
    return (
        Collection("U", tuple(_read(part.strip(), depth - 1) for part in parts))
        if len(parts) > 1 and all(part.strip() for part in parts)
        else None
    )


def _based(text: str) -> Form | None:
    based = _BASED.fullmatch(text)
    return Based(based[1].lower().lstrip("0") or "0", based[2]) if based and based[1].strip("+-")[0].isdigit() else None


def _quantity_or_words(text: str, depth: int) -> Form | None:
    """A value and the words or the sign around it; words alone."""
    units: list[str] = []

    def take(unit: re.Match[str]) -> str:
        units.append(_unit(unit[0]))
        return "\x02"

    rest = _WORDS.sub(take, text)
    rest = _UNIT_SIGN.sub(take, rest)
    if not units:
        return None
    rest = re.sub(r"[\x02.:!?]*\x02[\x02.:!?]*", "\x02", rest).strip("\x02 ")
    if not rest:
        return Text(" ".join(units))
    if "\x02" in rest:  # words between two values
        return None
    return Quantity(_read(rest, depth - 1), " ".join(units))


def _unit(written: str) -> str:
    """A unit by its name: lower case, no plural, the exponent after it."""
    exponent = _EXPONENT.search(written)
    name = re.sub(r"[\x02\x03.\\{}]|\^\{?\d\}?", "", written).strip().lower()
    name = {"^circ": "degree", "°": "degree", "degrees": "degree", "percent": "%"}.get(name, name)
    name = name[:-1] if len(name) > 3 and name.endswith("s") else name
    return name + (exponent[1] if exponent else "")


def latex(form: Form) -> str:
    """The form as LaTeX."""
    match form:
        case Number(value):
            return str(value) if value.denominator == 1 else f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
        case Based(numeral, base):
            return f"{numeral}_{{{base}}}"
        case Text(words):
            return f"\x02{words}\x03"
        case Quantity(value, unit):
            return f"{latex(value)}\x02{unit}\x03"
        case Assignment(name, value):
            return f"{name}={latex(value)}"
        case Expression(written):
            return written
        case Collection("U", items):
            return "\\cup ".join(map(latex, items))
        case Collection("matrix", items):
            return "\\begin{pmatrix}" + "\\\\".join(map(latex, items)) + "\\end{pmatrix}"
        case Collection("row", items):
            return "&".join(map(latex, items))
        case Collection(brackets, items):
            opening, closing = (brackets[:1], brackets[1:]) if brackets != "{}" else ("\\{", "\\}")
            return opening + ",".join(map(latex, items)) + closing


def leaves(form: Form) -> Iterator[str]:
    """The LaTeX of the expressions in a form that an algebra system may be asked about."""
    match form:
        case Expression(written, opaque):
            if not opaque:
                yield written
        case Collection(_, items):
            for item in items:
                yield from leaves(item)
        case Quantity(value) | Assignment(_, value):
            yield from leaves(value)


def _closing(text: str) -> int:
    """Where the bracket that opens the text is closed; half-open intervals close with any bracket. -1 if nowhere."""
    depth = 0
    for position, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth == 0:
                return position
    return -1


def split_top_level(text: str, separators: str) -> list[str]:
    """The parts between separators that stand outside of all brackets."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif depth == 0 and character in separators and (position == 0 or text[position - 1] != "\\"):
            parts.append(text[start:position].strip())
            start = position + 1
    return [*parts, text[start:].strip()]
