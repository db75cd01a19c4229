r"""One way to write what LaTeX and plain text write in many; and the exact value of a written number.

In normalised text `\x02` and `\x03` stand around words, so that nothing later takes a word for a product of letters.
"""

from __future__ import annotations

import re
from fractions import Fraction

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
    (re.compile(r"[\u2212\u2013]"), "-"),
    (re.compile(r"\{,\}|(?<=\d),\s*\\!"), ","),
    (re.compile(r"\\,(?=\d{3}(?!\d))"), ""),
    (re.compile(r"\\q?quad(?![a-zA-Z])|(?<!\\)\\[,;:> ]|~|\s+"), " "),
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\^\s*\{?\s*\\(?:circ|degree)(?![a-zA-Z])\s*\}?|\\degree(?![a-zA-Z])"), "°"),
    (re.compile(r"\\leq?(?![a-zA-Z])|≤"), r"\\leq "),
    (re.compile(r"\\geq?(?![a-zA-Z])|≥"), r"\\geq "),
    (re.compile(r"π"), r"\\pi "),
    (re.compile(r"∞"), r"\\infty "),
    (re.compile(r"√"), r"\\sqrt "),
    (re.compile(r"(?<=[\d)}a-z])\s*(?:\\approx|≈).*"), ""),  # a rounding beside the exact value
)
_FINAL_MARKS = ".,;:\u3002\uff0e\uff61\uff0c\u3001\uff1b\uff1a"  # and those of Chinese and Japanese
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
    rf"([+-]?)(?:({_NUMERAL})(?:\\times|\\cdot|[*\u00d7\u00b7]))?10\^(?:\{{([+-]?\d{{1,3}})\}}|(\d))"
)


def normalize(answer: str) -> str:
    r"""Strip what carries no meaning: spaces, `$`, `\left`, `\right`, thin spaces, emphasis, a final full stop.

    A space between two digits stays, unless it is a thin one that separates thousands: "3 1/2" is not 31/2.
    """
    text = answer.strip().strip("*").strip()
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    text = _TEXT.sub(lambda match: _marked(match[1]), text)
    text = "".join(_mark_bare_words(piece) for piece in re.split(r"(\x02[^\x03]*\x03)", text))
    text = _LOOSE_SPACE.sub(lambda match: match[1] or match[2] or match[3] or "", text)
    text = _SHORT_SCRIPT.sub(r"\1\2", _SHORT_ROOT.sub(r"\\sqrt{\1}", text))
    text = _SHORT_FRACTION.sub(lambda m: f"\\frac{{{m[1] or m[2] or ''}}}{{{m[3] or m[4] or ''}}}", text)
    return text.strip().rstrip(_FINAL_MARKS).strip()


def _marked(words: str) -> str:
    """Text between markers, where it has letters; its commas and conjunctions separate parts."""
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
    """Words that touch a number or a bracket: "5cm", "(even)"."""

    def mark(match: re.Match[str]) -> str:
        is_word = _SHORT_NAME.fullmatch(match[0]) if len(match[0]) == 2 else not _FUNCTION.fullmatch(match[0])
        return f"\x02{match[0]}\x03" if is_word else match[0]

    return _SHORT_WORD.sub(mark, _LONG_WORD.sub(mark, piece))


def to_number(normalized: str) -> Fraction | None:
    """The exact value of a normalised integer, decimal, fraction, mixed number or power of ten; None for others."""
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
        power = Fraction(10) ** int(scientific[3] or scientific[4])
        return _signed(scientific[1], _value(scientific[2] or "1") * power)
    return None


def _value(numeral: str) -> Fraction:
    return Fraction(numeral.replace(",", "").rstrip("."))


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign == "-" else value
