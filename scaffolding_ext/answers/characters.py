"""One spelling for characters that look alike or are not seen."""

from __future__ import annotations

import re
import unicodedata

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉₊₋ₙ", "0123456789+-n")
_SUBSCRIPT = re.compile("[₀₁₂₃₄₅₆₇₈₉₊₋ₙ]+")
_MIXED = re.compile("(?<=[0-9])(?=[\u00bc-\u00be\u2150-\u215e])")  # 3½ is 3 1/2, not 31/2
_ALIKE = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2044": "/"})


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
