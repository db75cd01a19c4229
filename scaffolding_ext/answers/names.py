"""Shapes of answers that are no mathematics, though their characters could be read as such.

A date is no difference, an address no decimal, a Roman numeral or the formula of a substance no product of letters.
"""

from __future__ import annotations

import re

_ELEMENT = (
    "(?:A[cglmrstu]|B[aehikr]?|C[adeflmnorsu]?|D[bsy]|E[rsu]|F[elmr]?|G[ade]|H[efgos]?|I[nr]?|Kr?|L[airuv]|M[dgnot]"
    "|N[abdeiop]?|O[gs]?|P[abdmortu]?|R[abefghnu]|S[bcegimnr]?|T[abcehilm]|U|V|W|Xe|Yb?|Z[nr])"
)
_SUBSTANCE = re.compile(rf"(?:{_ELEMENT}\d*)+")
_NAMES = re.compile(
    r"""
    \d{1,4}([-/.])\d{1,2}\1\d{1,4}(?:[T\ ].*)?   # a date
    | \d{1,2}:\d\d(?::\d\d)?(?:\ ?[ap]\.?m\.?)?   # a time of day
    | (?:1\d|20)\d\d\s*[-\u2013]\s*(?:1\d|20)\d\d      # years
    | v?\d+(?:\.\d+){2,}(?:[:/]\d+)?              # a version or an address
    | v\d+(?:\.\d+)*
    | [0-9a-f:]*::[0-9a-f:]*                      # an address with colons
    | (?=.*\d{4})\+?\d+(?:-\d+){2,}               # a telephone number or a book's
    | \d{3}-\d{4}
    | \d{4}-\d{3}
    | [\w.+-]+@[\w.-]+                            # an address of mail
    | 0[xXbB][0-9a-fA-F]+                              # a number of a program
    | [A-Z]{2,}[-\u2013]?\d[A-Za-z\d]*                 # a code
    | [A-Z]-\d{2,}[A-Za-z\d]*
    | (?!sin|cos|tan|log|exp|sqrt|lim|max|min|gcd|lcm)[a-z]{3,}\d[A-Za-z\d]*
    | [A-Z]\d+[A-Za-z\d]*
    | [a-z]\d+(?:[a-z]\d*)?
    | [KQRBN][a-h]?[1-8]?x?[a-h][1-8][+\#]?       # a move of chess
    | \d+[A-Z]+\d+[A-Z\d]*
    | [A-Za-z]{2,}_[A-Za-z]{2,}\w*                # a name of a program
    | \w+\[\d+\]
    | (?:\w+(?:\+\+|--)|(?:\+\+|--)\w+)
    """,
    re.VERBOSE,
)
_ROMAN = re.compile(r"(?=[ivxlcdm]{2})m{0,3}(cm|cd|d?c{0,3})(xc|xl|l?x{0,3})(ix|iv|v?i{0,3})")
_CHARGE = re.compile(r"\^\{?\d*[-+]\}?$")
_SET_UPRIGHT = re.compile(r"\\(?:text|mathrm|operatorname|ce)\s*\{([^{}]*)\}")


def spelled(text: str) -> str:
    """Return a text without the marks that only set it: upright letters, indices, spaces."""
    return re.sub(r"[\s$\\{}_]|\\[,;!]", "", _SET_UPRIGHT.sub(r"\1", text))


def is_name(text: str) -> bool:
    """Return True if a text is a date, an address, a numeral, a substance or a code, equal only as it is spelled."""
    plain = _SET_UPRIGHT.sub(r"\1", text.strip().strip("$").strip()).strip()
    is_roman = (plain.isupper() or plain.islower()) and _ROMAN.fullmatch(plain.lower())
    bare = re.sub(r"[_{}]", "", _CHARGE.sub("", plain))
    return bool(_NAMES.fullmatch(plain) or is_roman or (len(bare) > 1 and _SUBSTANCE.fullmatch(bare)))
