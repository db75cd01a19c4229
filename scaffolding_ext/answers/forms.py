r"""Parsing of answers: normalize the notation, then split it into numbers, words, tuples, expressions and so on.

LaTeX and plain text write one thing in many ways; `normalize` maps them to one. It marks words with `\x02` and `\x03`,
so that a word is not read as a product of letters. Reading takes time linear in the answer's length and computes only
fractions.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from scaffolding_ext.answers.names import is_name, spelled

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉₊₋ₙ", "0123456789+-n")
_SUBSCRIPT = re.compile("[₀₁₂₃₄₅₆₇₈₉₊₋ₙ]+")
_MIXED = re.compile("(?<=[0-9])(?=[\u00bc-\u00be\u2150-\u215e])")  # 3½ is 3 1/2, not 31/2
_ALIKE = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2044": "/"})
WORDS = "\x02[^\x02\x03]*\x03"

_REPLACED = (
    (re.compile(r"[\x00-\x08]|\\boxed(?=\{)|(?<!\\)\$|\\[()\[\]](?!\w*\\right)|\\!\s*"), ""),
    (re.compile(r"\\(?:left|right|displaystyle|limits|[bB]igg?[lr]?)(?![a-zA-Z])"), ""),
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
    (re.compile(r"π|(?<![A-Za-z\\])pi(?![A-Za-z])"), r"\\pi "),
    (re.compile(r"(?:Fraction|Rational)\(\s*(-?\d+)\s*,\s*(-?\d+)\s*\)"), r"\\frac{\1}{\2}"),  # of a program
    (re.compile(r"\*\*\s*(-?\w+|\([^()]*\))"), r"^{\1}"),
    (re.compile(r"(?<![A-Za-z\\])sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![A-Za-z\\])exp\s*\(([^()]*)\)"), r"e^{\1}"),
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
_ANY_WORD = re.compile(rf"({WORDS})|{_LONG_WORD.pattern}|(?<![A-Za-z\\_^{{])[A-Za-z]{{2}}(?![A-Za-z_(])")
_CONJUNCTION = re.compile(r",|(?<=\s)(?:and|or)(?=\s)|\A\s*(?:and|or)\s*\Z", re.IGNORECASE)
_LOOSE_SPACE = re.compile(r"(\x02[^\x03]*\x03)|(\\[A-Za-z]+ (?=[A-Za-z]))|(\d (?=\d))| ")
_GROUP = r"\{((?:[^{}]|\{[^{}]*\})*)\}"
_SHORT_FRACTION = re.compile(rf"\\frac\s*(?:{_GROUP}|(\d))\s*(?:{_GROUP}|(\d))")
_SHORT_ROOT = re.compile(r"\\sqrt\s*([0-9A-Za-z])")
_SHORT_SCRIPT = re.compile(r"([_^])\{(\w)\}")

_NUMERAL = r"(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+"
_FRACTION = re.compile(rf"\\frac\{{([+-]?(?:{_NUMERAL}))\}}\{{([+-]?(?:{_NUMERAL}))\}}")
_NUMBER = re.compile(rf"([+-]?)(?:(\d+) +| *)\(?([+-]?)({_NUMERAL})\)?(?:/\(?([+-]?)({_NUMERAL})\)?)?")
_SCIENTIFIC = re.compile(
    rf"([+-]?)(?:({_NUMERAL})(?:\\times|\\cdot|[x*\u00d7\u00b7]))?10(?:\^|\*\*)"
    rf"(?:\{{([+-]?\d{{1,3}})\}}|([+-]\d{{1,3}}|\d))|([+-]?)({_NUMERAL})[eE]([+-]?\d{{1,3}})"
)
_AMBIGUOUS = re.compile(r"[+-]?\d+e[+-]\d*|.*x10.*")  # 2e-3 may be a difference, and x an unknown


def plain_characters(text: str) -> str:
    """Return the text in Unicode's form NFKC, without invisible characters, with straight quotes.

    Raised and lowered digits become LaTeX scripts: `x²` is `x^{2}`. Fractions in one character become `1/2`.
    """
    if text.isascii():
        return text
    text = _SUPERSCRIPT.sub(lambda match: f"^{{{match[0].translate(_SUPERSCRIPTS)}}}", text)
    text = _SUBSCRIPT.sub(lambda match: f"_{{{match[0].translate(_SUBSCRIPTS)}}}", text)
    text = unicodedata.normalize("NFKC", _MIXED.sub(" ", text.replace("\u00ba", "°"))).translate(_ALIKE)
    return "".join(character for character in text if unicodedata.category(character) != "Cf")


@lru_cache(maxsize=4096)
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
    """Mark words between spaces, if any is long, and those that touch a number or a bracket: "5cm", "(even)"."""
    if piece.startswith("\x02"):
        return piece
    if not all(map(_FUNCTION.fullmatch, _LONG_WORD.findall(piece))):
        piece = re.sub(r"(?<![^\s])(?:and|or)(?![^\s])", ",", piece)
        piece = _TOKEN.sub(lambda match: f"\x02{match[0]}\x03", piece)
    return re.sub(r"\x03\s*\x02", " ", _ANY_WORD.sub(_mark, piece))


def _mark(word: re.Match[str]) -> str:
    is_word = _SHORT_NAME.fullmatch(word[0]) if len(word[0]) == 2 else not (word[1] or _FUNCTION.fullmatch(word[0]))
    return f"\x02{word[0]}\x03" if is_word else word[0]


def to_number(normalized: str) -> Fraction | None:
    """Return the exact value of a normalized integer, decimal, fraction, mixed number or power of ten; else None."""
    number = _NUMBER.fullmatch(_FRACTION.sub(r" \1/\2", normalized))
    if number:
        sign, whole, above, numerator, below, denominator = number.groups()
        if (whole and (above or below or not denominator)) or not _value(denominator or "1"):
            return None
        value = _signed(above, _value(numerator)) / _signed(below or "", _value(denominator or "1"))
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
_MAX_DEPTH = 4
_MAX_PARTS = 64
_OPTIONS = "ABCDEabcde"
_OPTION = re.compile(r"[\x02(]*([A-Za-z])[\x03).:]*")
_NAME = re.compile(r"\\?[A-Za-z]+(?:_(?:\w|\{[^{}]*\}|\\[a-z]+))?'*(?:\([A-Za-z](?:,[A-Za-z])*\))?|\([^()=\d]*\)")
_EQUALS = re.compile(r"(?<![<>!:])=(?!=)|\\in(?![a-z])")
_CALCULATION = re.compile(rf"(?:{_NUMERAL}|\\(?:times|cdot|div|frac|\$)|[-+*/\u00d7\u00b7\u00f7^(){{}}$])+")
_OPERATOR = re.compile(r".[-+*/\u00d7\u00b7\u00f7]|\\(?:times|cdot|div)")
_UNIT = re.compile(rf"{WORDS}(?:\^\{{?\d\}}?)?|\\\$|\\?%|\^\{{?\\circ\}}?|°|€|£")
_BASED = re.compile(r"([+-]?[\d.]+)_\{?(\d+)\}?")
_AND = re.compile(r"\x02(?:and|or)\x03")
_MATRIX = re.compile(r"\\begin\{([pb]?)matrix\}(.*)\\end\{\1matrix\}", re.DOTALL)
_ROW_END = re.compile(r"\\\\(?:\[[^\]]*\])?")
_OPAQUE = re.compile(r"\d_|[\x02\x03'%#&~\"]|(?<![_^])\d \d|\d[eE]\d|\.\d+[eE][+-]\d|(?<![\\A-Za-z])[A-Za-z]{4,}")


class Form(NamedTuple):
    """A parsed answer, or a part of one.

    Attributes:
        latex: Its LaTeX, without name and unit.
        value: Its number, if it is one.
        word: Its words or its option's letter, in lower case, if it is nothing else.
        unit: Its unit, percent sign or base, or the words around it; empty without one.
        name: Its name, as in `x = 5`, or its calculation, as in `2 + 3 = 5`; empty without one.
        brackets: The two brackets around its parts, `"{}"` of a set, `""` of a bare list, `"U"` of a union of
            intervals, `"matrix"` with the lengths of its rows.
        items: Its parts; empty if it has none.
        is_opaque: True if no algebra system can be trusted to read it.
        is_name: True if `word` is a date, an address, a numeral, a substance or a code, as it is spelled.
    """

    latex: str
    value: Fraction | None = None
    word: str | None = None
    unit: str = ""
    name: str = ""
    brackets: str = ""
    items: tuple[Form, ...] = ()
    is_opaque: bool = False
    is_name: bool = False

    @property
    def is_atom(self) -> bool:
        """True for a number or the name of a single variable."""
        return self.value is not None or (len(self.latex) == 1 and self.latex.isalpha())

    def leaves(self) -> Iterator[str]:
        """Yield the LaTeX of its expressions that an algebra system may read."""
        for item in self.items:
            yield from item.leaves()
        if not self.items and not self.is_opaque and self.value is None:
            yield self.latex


@lru_cache(maxsize=4096)
def form_of(normalized: str) -> Form:
    """Return the parts of a normalized answer."""
    return _form(normalized, _MAX_DEPTH)


def _form(text: str, depth: int) -> Form:
    bare = text.replace("\x02", "").replace("\x03", "")
    if is_name(bare):
        return Form(text, word=spelled(bare), is_opaque=True, is_name=True)
    value, option = to_number(text), _OPTION.fullmatch(text)
    if value is not None:
        return _number(value, bool(_AMBIGUOUS.fullmatch(text)))
    if (based := _BASED.fullmatch(text)) and (value := to_number(based[1])) is not None:
        return _number(value)._replace(unit=f"base {based[2]}")
    if option:
        return _word(option[1]) if option[1] in _OPTIONS else Form(option[1])
    if depth == 0 or not text:
        return Form(text, is_opaque=True)
    matrix = _MATRIX.fullmatch(text)
    if matrix and "\\begin" not in matrix[2]:
        rows = [row.split("&") for row in _ROW_END.split(matrix[2]) if row.strip()]
        return _parts(f"matrix {[*map(len, rows)]}", text, [cell.strip() for row in rows for cell in row], depth)
    if "," in text and (amount := _quantity(text, 1)) and amount.value is not None:
        return amount  # its commas separate thousands
    *names, result = _EQUALS.split(text)
    if names and _OPERATOR.search(names[0]) and all(map(_CALCULATION.fullmatch, names)) and re.search(r"\d", result):
        return _form(result, depth - 1)._replace(name="=".join(names))
    listed = _AND.sub(",", text)
    cells = [part for part in _split(listed) if part]
    if len(cells) > 1:
        return _parts("", listed, cells, depth)
    if len(names) == 1 and result.strip() and _NAME.fullmatch(names[0].strip()):
        return _form(result.strip(), depth - 1)._replace(name=names[0].strip())
    return _bracketed(text, depth) or _quantity(text, depth) or Form(text, is_opaque=bool(_OPAQUE.search(text)))


def _number(value: Fraction, is_opaque: bool = False) -> Form:
    written = str(value) if value.denominator == 1 else f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
    return Form(written, value, is_opaque=is_opaque)


def _word(words: str) -> Form:
    return Form(f"\x02{words}\x03", word=words.lower(), is_opaque=True)


def _parts(brackets: str, text: str, parts: Sequence[str], depth: int) -> Form:
    if len(parts) > _MAX_PARTS:
        return Form(text, is_opaque=True)
    items = tuple(_form(part, depth - 1) for part in parts)
    is_opaque = any(item.is_opaque or item.unit for item in items)
    return Form(text, brackets=brackets, items=items, is_opaque=is_opaque)


def _bracketed(text: str, depth: int) -> Form | None:
    """A tuple, an interval, a set, a text in needless brackets, or a union."""
    is_set = text.startswith("\\{") and text.endswith("\\}")
    bare = text.replace("\\{", "{").replace("\\}", "}") if is_set else text
    if bare[0] in "([{" and bare[-1] in ")]}" and (parts := _split(bare[1:-1].strip())):
        if not all(parts):
            return None
        if is_set or len(parts) > 1:
            return _parts("{}" if is_set else bare[0] + bare[-1], text, parts, depth)
        return _form(parts[0], depth - 1) if bare[0] + bare[-1] in ("()", "{}") else None
    parts = [part.strip() for part in text.split("\\cup")]
    return _parts("U", text, parts, depth) if len(parts) > 1 and all(parts) else None


def _quantity(text: str, depth: int) -> Form | None:
    """A value with the words or the sign around it, or only words."""
    units = [_unit(found[0]) for found in _UNIT.finditer(text)]
    rest = re.sub(r"[\x02.:!?]*\x02[\x02.:!?]*", "\x02", _UNIT.sub("\x02", text)).strip("\x02 ")
    if not units or "\x02" in rest:  # words between two values
        return None
    return _form(rest, depth - 1)._replace(unit=" ".join(units)) if rest else _word(" ".join(units))


def _unit(written: str) -> str:
    """Normalized unit name: lower case, singular, followed by the exponent."""
    exponent = re.search(r"\^\{?(\d)\}?", written)
    name = re.sub(r"[\x02\x03.\\{}]|\^\{?\d\}?", "", written).strip().lower()
    name = {"^circ": "degree", "°": "degree", "percent": "%"}.get(name, name)
    name = name[:-1] if len(name) > 3 and name.endswith("s") else name
    return name + (exponent[1] if exponent else "")


def _split(text: str) -> list[str]:
    """Split at commas and semicolons outside all brackets; empty if the brackets do not match.

    Any closing bracket matches, as in half-open intervals.
    """
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return []
        if depth == 0 and character in ",;" and (position == 0 or text[position - 1] != "\\"):
            parts.append(text[start:position].strip())
            start = position + 1
    return [] if depth else [*parts, text[start:].strip()]
