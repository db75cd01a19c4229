"""Extraction of the final answer from a text."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Literal

from scaffolding_ext.answers.characters import plain_characters

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
# Text after an answer phrase, up to the end of its sentence or line; a decimal point does not end it.
_PHRASE = re.compile(
    r"(?:(?:final answer|the answer|\banswer(?=\**:))\**\s*(?:is|:)|答案\**\s*[是为為:])[\s:*]*([^\n]+?)"
    r"(?=\.\**\s+(?-i:[A-Z])|[\u3002\uff61]|\n|\Z)",
    re.IGNORECASE,
)
# End of an answer in an unclosed box: the end of its line, formula or sentence.
_LINE_END = re.compile(r"\n|\\\]|(?<!\\)\$|(?<=\w)\.\s+(?=[A-Z])")
_CUT = re.compile(r"(?:\A\$+|\A\\[(\[]|\\(?:b(?:o(?:x(?:ed?)?)?)?)?)\Z")  # an answer cut just after it was opened
_MATHS = re.compile(r"\$\$([^$]+)\$\$|\$([^$]+)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_NUMBER = re.compile(
    r"(?<![\w.])[+-]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?(?:\s?\\?%)?|(?<![\w.])[+-]?\.\d+"
)
_RELATION = re.compile(r"(?<![<>!\\])=|\\approx")
_HASHES = re.compile(
    r"^[ \t]*####[ \t]*(?!\d+[.)] )((?:[+-][ ]?)?(?:\\?\$|[€£])?[ ]?[+-]?\.?\d[^\n]{0,40}?)[.\s]*\Z", re.MULTILINE
)
_LAST_CHARACTERS = 4_000  # searched for the last number or formula


def extract(
    text: str,
    *,
    fallback: Literal["last"] | None = None,
    choices: str = "",
    extractor: Callable[[str], str | None] | None = None,
) -> str | None:
    r"""Return the final answer: the last box, else a last line `#### 180`, else the text after the last answer phrase.

    A box is `\boxed{...}` or `\fbox{...}`. If the last box is empty or unclosed, or a phrase ends in half a box, the
    result is None: the text was cut inside the answer.

    Args:
        text: Model output.
        fallback: `"last"` takes the last formula or number of a text with neither box nor phrase; of a formula with an
            equals sign, the right-hand side.
        choices: Letters of a multiple-choice question, such as `"ABCD"`. The answer is then one of them: the first that
            stands by itself in the box or phrase, else the last in the text.
        extractor: Tried before these rules, which apply if it returns None or only spaces.

    Returns:
        The answer, never empty.
    """
    own = extractor(text) if extractor is not None else None
    if own is not None and own.strip():
        return own.strip()
    text = plain_characters(text)
    inside = _inside_last_box(text)
    if inside is not None:
        answer = up_to_brace(inside)
    else:
        answer = _behind_hashes(text) or _phrase(text)
        if answer is None and fallback == "last" and not choices:
            answer = _last_formula_or_number(text[-_LAST_CHARACTERS:])
    if choices:
        if inside is not None or answer:
            return next(iter(_choices(answer or "", choices)), None)
        return next(reversed(_choices(text[-_LAST_CHARACTERS:], choices)), None)
    return answer or None


def _inside_last_box(text: str) -> str | None:
    """Text after the opening brace of the last box, or None without a box."""
    start = text.rfind("\\boxed{")
    if start >= 0 and text.find("box", start + 7) < 0:
        return text[start + 7 :]  # the usual case, found from the end
    boxes = list(_BOX.finditer(text))
    return text[boxes[-1].end() :] if boxes else None


def up_to_brace(text: str) -> str | None:
    """Return the text up to the first unmatched `}`, which closes an opened box; None without one.

    Braces escaped by a backslash are text.
    """
    end = text.find("}")
    if end < 0:
        return None
    if "{" not in text[:end] and "\\" not in text[:end]:
        return text[:end].strip()
    depth = 0
    for token in _BRACE.finditer(text):
        if token[0] == "{":
            depth += 1
        elif token[0] == "}":
            if depth == 0:
                return text[: token.start()].strip()
            depth -= 1
    return None


def begun_box(text: str) -> str | None:
    """Read an answer from the continuation of an open box: up to the closing brace, or else the first line.

    A forced answer is read even if the model never closes the box. The first line also ends with the formula (`$` or
    `\\]`) or the sentence. Returns None for an empty answer.
    """
    closed = up_to_brace(text)
    if closed is not None:
        return closed or None
    return _LINE_END.split(text.strip().lstrip("$"), maxsplit=1)[0].strip() or None


def _behind_hashes(text: str) -> str | None:
    """The number in a last line of GSM8K's form `#### 180`; other headings are ignored."""
    start = text.rfind("####")
    found = _HASHES.search(text, text.rfind("\n", 0, start) + 1) if start >= 0 else None
    return None if found is None else found[1].strip()


def _phrase(text: str) -> str | None:
    phrases = (
        _PHRASE.findall(text) if "answer" in text.casefold() or "答案" in text else ()
    )  # a substring test is far faster
    answer = phrases[-1].strip().rstrip("*. ").strip() if phrases else ""
    return None if not answer or _CUT.search(answer) else answer


def _choices(text: str, choices: str) -> list[str]:
    """The choice letters that stand by themselves in the text."""
    return re.findall(rf"(?<![A-Za-z\\])[{re.escape(choices)}](?![A-Za-z'\u2019])", text)


def _last_formula_or_number(text: str) -> str | None:
    formulas, numbers = (deque(pattern.finditer(text), maxlen=1) for pattern in (_MATHS, _NUMBER))
    if formulas and (not numbers or numbers[0].start() < formulas[0].end()):
        written = next(group for group in formulas[0].groups() if group is not None)
        return _RELATION.split(written)[-1].strip().rstrip(".,").strip() or None
    return numbers[0][0] if numbers else None
