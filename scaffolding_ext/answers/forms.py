r"""Parsing of answers: normalize the notation, then split it into numbers, words, tuples, expressions and so on.

LaTeX and plain text write one thing in many ways; `normalize` maps them to one. It marks words with `\x02` and `\x03`,
so that a word is not read as a product of letters. Reading takes time linear in the answer's length and computes only
fractions.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import NamedTuple

from scaffolding_ext.answers.characters import plain_characters

WORDS = "\x02[^\x02\x03]*\x03"

_REPLACED = (
    (re.compile(r"[\x00-\x08]"), ""),
    (re.compile(r"\\boxed(?=\{)"), ""),
    (
        re.compile(
            r"(?<!\\)\$|\\[()\[\]](?!\w*\\right)|\\(?:left|right|displaystyle|limits|[bB]igg?[lr]?)(?![a-zA-Z])|\\!\s*"
        ),
        "",
    ),
    (re.compile(r"[\u2010-\u2013\u2212]"), "-"),
    (re.compile(r"\{,\}|(?<=\d),\s*\\!"), ","),
    (re.compile(r"\\,(?=\d{3}(?!\d))"), ""),
    (re.compile(r"\\q?quad(?![a-zA-Z])|(?<!\\)\\[,;:> ]|~|\s+"), " "),
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\^\s*\{?\s*\\(?:circ|degree)(?![a-zA-Z])\s*\}?|\\degree(?![a-zA-Z])"), "°"),
    (re.compile(r"\\varnothing(?![a-zA-Z])|\u2205|\\\{\s*\\\}"), r"\\emptyset "),
    (re.compile(r"\\var(?=(?:phi|epsilon|theta|rho|sigma|pi|kappa)(?![a-zA-Z]))"), r"\\"),
    (re.compile(r"\\leq?(?![a-zA-Z])|≤"), r"\\leq "),
    (re.compile(r"\\geq?(?![a-zA-Z])|≥"), r"\\geq "),
    (re.compile(r"π"), r"\\pi "),
    (re.compile(r"∞"), r"\\infty "),
    (re.compile(r"√"), r"\\sqrt "),
    (re.compile(r"(?<=[\d)}a-z])\s*(?:\\approx|≈).*"), ""),  # a rounded value after the exact one
)
_FINAL_MARKS = ".,;:\u3002\uff0e\uff61\uff0c\u3001\uff1b\uff1a"  # including Chinese and Japanese punctuation
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_LONG_WORD = re.compile(r"(?<!\\begin\{)(?<!\\end\{)(?<![A-Za-z\\_^])[A-Za-z]{3,}(?![A-Za-z_^(])")
_TOKEN = re.compile(r"(?<![^\s(,])[A-Za-z][A-Za-z'\u2019-]*[.:!?]?(?![^\s),;])")
_FUNCTION = re.compile(
    "arc(?:sin|cos|tan)|(?:sin|cos|tan)h?|cot|sec|csc|log|exp|sqrt|frac|min|max|gcd|lcm", re.IGNORECASE
)
_SHORT_NAME = re.compile("no|it|is|at|or|up|[cmk]m|[mk]g|ml|ft|in|oz|lb|hr|mi|am|pm", re.IGNORECASE)
_SHORT_WORD = re.compile(r"(?<![A-Za-z\\_^{])[A-Za-z]{2}(?![A-Za-z_(])")
_CONJUNCTION = re.compile(r",|(?<=\s)(?:and|or)(?=\s)|\A\s*(?:and|or)\s*\Z", re.IGNORECASE)
_LOOSE_SPACE = re.compile(r"(\x02[^\x03]*\x03)|(\\[A-Za-z]+ (?=[A-Za-z]))|(\d (?=\d))| ")
_GROUP = r"\{((?:[^{}]|\{[^{}]*\})*)\}"
_SHORT_FRACTION = re.compile(rf"\\frac\s*(?:{_GROUP}|(\d))\s*(?:{_GROUP}|(\d))")
_SHORT_ROOT = re.compile(r"\\sqrt\s*([0-9A-Za-z])")
_SHORT_SCRIPT = re.compile(r"([_^])\{(\w)\}")

_NUMERAL = r"(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+"
_NUMBER = re.compile(rf"([+-]*)({_NUMERAL})")
_RATIO = re.compile(
    rf"([+-]?)(?:(\d+)(?=[ \\]) ?)?(?:\\frac\{{([+-]?)({_NUMERAL})\}}\{{([+-]?)({_NUMERAL})\}}"
    rf"|\(?([+-]?)({_NUMERAL})\)?/\(?([+-]?)({_NUMERAL})\)?)"
)
_SCIENTIFIC = re.compile(
    rf"([+-]?)(?:({_NUMERAL})(?:\\times|\\cdot|[x*\u00d7\u00b7]))?10(?:\^|\*\*)"
    rf"(?:\{{([+-]?\d{{1,3}})\}}|([+-]\d{{1,3}}|\d))|([+-]?)({_NUMERAL})[eE]([+-]?\d{{1,3}})"
)
_AMBIGUOUS = re.compile(r"[+-]?\d+e[+-]\d*|.*x10.*")  # 2e-3 may be a difference, and x an unknown


def normalize(answer: str) -> str:
    r"""Strip notation without meaning: spaces, `$`, `\left`, `\right`, thin spaces, emphasis, a final full stop.

    A space between two digits stays, unless it is a thin space that separates thousands: "3 1/2" is not 31/2.
    """
    text = plain_characters(answer).strip().strip("*").strip()
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    text = _TEXT.sub(lambda match: _marked(match[1]), text)
    text = "".join(_mark_bare_words(piece) for piece in re.split(r"(\x02[^\x03]*\x03)", text))
    text = _LOOSE_SPACE.sub(lambda match: match[1] or match[2] or match[3] or "", text)
    text = _SHORT_SCRIPT.sub(r"\1\2", _SHORT_ROOT.sub(r"\\sqrt{\1}", text))
    text = _SHORT_FRACTION.sub(lambda m: f"\\frac{{{m[1] or m[2] or ''}}}{{{m[3] or m[4] or ''}}}", text)
    return text.strip().rstrip(_FINAL_MARKS).strip()


def _marked(words: str) -> str:
    """Put markers around text that has letters; commas and conjunctions separate its parts."""
    if not re.search(r"[^\W\d_]", words):
        return words
    parts = [part.strip() for part in _CONJUNCTION.split(words)]
    return ",".join(f"\x02{' '.join(part.split())}\x03" if re.search(r"[^\W\d_]", part) else part for part in parts)


def _mark_bare_words(piece: str) -> str:
    if piece.startswith("\x02"):
        return piece
    long = [word for word in _LONG_WORD.findall(piece) if not _FUNCTION.fullmatch(word)]
    if long:
        piece = re.sub(r"(?<![^\s])(?:and|or)(?![^\s])", ",", piece)
        piece = _TOKEN.sub(lambda match: f"\x02{match[0]}\x03", piece)
    if long or _SHORT_WORD.search(piece):
        pieces = re.split(r"(\x02[^\x03]*\x03)", piece)
        piece = "".join(part if part.startswith("\x02") else _mark_rest(part) for part in pieces)
    return re.sub(r"\x03\s*\x02", " ", piece)


def _mark_rest(piece: str) -> str:
    """Mark words that touch a number or a bracket: "5cm", "(even)"."""

    def mark(match: re.Match[str]) -> str:
        is_word = _SHORT_NAME.fullmatch(match[0]) if len(match[0]) == 2 else not _FUNCTION.fullmatch(match[0])
        return f"\x02{match[0]}\x03" if is_word else match[0]

    return _SHORT_WORD.sub(mark, _LONG_WORD.sub(mark, piece))


def to_number(normalized: str) -> Fraction | None:
    """Return the exact value of a normalized integer, decimal, fraction, mixed number or power of ten; else None."""
    number = _NUMBER.fullmatch(normalized)
    if number and len(number[1]) < 2:
        return _signed(number[1], _value(number[2]))
    ratio = _RATIO.fullmatch(normalized)
    if ratio:
        sign, whole, *parts = ratio.groups()
        numerator_sign, numerator, denominator_sign, denominator = parts[:4] if parts[1] else parts[4:]
        if not _value(denominator) or (whole and (numerator_sign or denominator_sign)):
            return None
        value = _signed(numerator_sign, _value(numerator)) / _signed(denominator_sign, _value(denominator))
        return _signed(sign, value + int(whole or 0))
    scientific = _SCIENTIFIC.fullmatch(normalized)
    if scientific:
        sign, mantissa, braced, bare, *calculator = scientific.groups()
        if calculator[1]:
            sign, mantissa, bare = calculator
        return _signed(sign, _value(mantissa or "1") * Fraction(10) ** int(braced or bare))
    return None


def _value(numeral: str) -> Fraction:
    return Fraction(numeral.replace(",", "").rstrip("."))


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign == "-" else value


LONGEST = 500  # characters; longer answers are equal only as strings
OPTIONS = "ABCDEabcde"
_MAX_DEPTH = 4
_MAX_PARTS = 64
_OPTION = re.compile(r"[\x02(]*([A-Za-z])[\x03).:]*")
_ASSIGNED = re.compile(r"\\?[A-Za-z]+(?:_(?:\w|\{[^{}]*\}|\\[a-z]+))?'*(?:\([A-Za-z](?:,[A-Za-z])*\))?|\([^()=\d]*\)")
_ASSIGNMENT = re.compile(r"(?<![<>!:])=(?!=)|\\in(?![a-z])")
_WORDS = re.compile(rf"{WORDS}(?:\^\{{?(\d)\}}?)?")
_CALCULATION = re.compile(rf"(?:{_NUMERAL}|\\(?:times|cdot|div|frac|\$)|[-+*/\u00d7\u00b7\u00f7^(){{}}$])+")
_OPERATOR = re.compile(r".[-+*/\u00d7\u00b7\u00f7]|\\(?:times|cdot|div)")
_EXPONENT = re.compile(r"\^\{?(\d)\}?")
_UNIT_SIGN = re.compile(r"\\\$|\\?%|\^\{?\\circ\}?|°|€|£")
_BASED = re.compile(r"([+-]?[\w.]+)_\{?(\d+)\}?")
_AND = re.compile(r"\x02(?:and|or)\x03")
_MATRIX = re.compile(r"\\begin\{([pb]?)matrix\}(.*)\\end\{\1matrix\}", re.DOTALL)
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_LONG_NAME = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{4,}")
_OPAQUE = re.compile(r"[\x02\x03'%#&~\"]|(?<![_^])\d \d|\d[eE]\d|\.\d+[eE][+-]\d")


@dataclass(frozen=True)
class Number:
    """An exact number; `ambiguous` if it could be an expression, as `2e-3`."""

    value: Fraction
    ambiguous: bool = False


@dataclass(frozen=True)
class Based:
    """A numeral with its base as a subscript."""

    numeral: str
    base: str


@dataclass(frozen=True)
class Text:
    """Words or an option's letter, in lower case."""

    words: str


@dataclass(frozen=True)
class Quantity:
    """A value with a unit, a percent sign or words around it."""

    value: Form
    unit: str


@dataclass(frozen=True)
class Assignment:
    """A value with its name, as in `x = 5`, or with its calculation, as in `2 + 3 = 5`."""

    name: str
    value: Form


@dataclass(frozen=True)
class Collection:
    r"""Parts in brackets.

    Attributes:
        brackets: The two brackets as written; `""` for a bare list, `"{}"` for a set, `"U"` for a union of intervals,
            `"matrix"` for a matrix, whose items are rows.
        items: The parts.
    """

    brackets: str
    items: tuple[Form, ...]

    @cached_property
    def numbers(self) -> frozenset[Fraction] | None:
        """The values of its parts; None if any is not a number."""
        values = [item.value for item in self.items if isinstance(item, Number)]
        return frozenset(values) if len(values) == len(self.items) else None

    @cached_property
    def parts(self) -> frozenset[Form]:
        """The distinct parts."""
        return frozenset(self.items)

    @cached_property
    def has_two_signs(self) -> bool:
        """True if a part stands for two values: it contains a plus-minus sign."""
        return "\\pm" in latex(self)


@dataclass(frozen=True)
class Expression:
    """Anything else, as normalized LaTeX; `opaque` if no algebra system can be trusted to read it."""

    latex: str
    opaque: bool = False


Form = Number | Based | Text | Quantity | Assignment | Collection | Expression


class Read(NamedTuple):
    """A parsed answer.

    Attributes:
        normalized: Its normal form.
        form: Its parts.
        digits: The normal form; without commas, spaces and leading zeros if it begins with a digit.
        shape: Structure of an answer made only of numbers; else None.
        values: Its numbers. Two answers of one shape are equal if and only if their values are.
    """

    normalized: str
    form: Form
    digits: str
    shape: str | None
    values: Hashable


def read(answer: str) -> Read | None:
    """Return the parts of an answer; None if it is empty or longer than `LONGEST` characters."""
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
    """Structure of a form made only of numbers, and these numbers; None for other forms."""
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
        return Number(value, bool(_AMBIGUOUS.fullmatch(text)))
    letter = _OPTION.fullmatch(text)
    if letter:
        return Text(letter[1].lower()) if letter[1] in OPTIONS else Expression(letter[1])
    if depth == 0 or not text:
        return Expression(text, opaque=True)
    return (
        _matrix(text, depth)
        or _amount(text)
        or _calculation(text, depth)
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


def _amount(text: str) -> Form | None:
    """A number with thousands separators and a unit, which is not a list."""
    form = _quantity_or_words(text, 1) if "," in text else None
    return form if isinstance(form, Quantity) and isinstance(form.value, Number) else None


def _list(text: str, depth: int) -> Form | None:
    parts = split_top_level(_AND.sub(",", text), ",;")
    parts = [part for part in parts if part]
    if len(parts) > _MAX_PARTS:
        return Expression(text, opaque=True)
    return Collection("", tuple(_read(part, depth - 1) for part in parts)) if len(parts) > 1 else None


def _calculation(text: str, depth: int) -> Form | None:
    """The result of a purely numeric calculation, such as 90 in `60+30=90`."""
    *steps, result = _ASSIGNMENT.split(text)
    is_plain = steps and _OPERATOR.search(steps[0]) and all(map(_CALCULATION.fullmatch, steps))
    if not is_plain or not re.search(r"\d", result):
        return None
    return Assignment("=".join(steps), _read(result, depth - 1))


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
    """A value with the words or the sign around it, or only words."""
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
    """Normalized unit name: lower case, singular, followed by the exponent."""
    exponent = _EXPONENT.search(written)
    name = re.sub(r"[\x02\x03.\\{}]|\^\{?\d\}?", "", written).strip().lower()
    name = {"^circ": "degree", "°": "degree", "degrees": "degree", "percent": "%"}.get(name, name)
    name = name[:-1] if len(name) > 3 and name.endswith("s") else name
    return name + (exponent[1] if exponent else "")


def latex(form: Form) -> str:
    """Write the form as LaTeX."""
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
    """Yield the LaTeX of the expressions in a form that an algebra system may read."""
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
    """Index of the bracket that closes the first one, or -1; any closing bracket matches, as in half-open intervals."""
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
    """Split at separators outside all brackets."""
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
