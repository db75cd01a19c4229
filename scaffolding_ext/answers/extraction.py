"""Find the final answer in a text."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Literal

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
# What follows an answer phrase, up to the end of its sentence or line; the full stop of a decimal ends nothing.
_PHRASE = re.compile(
    r"(?:final answer|the answer|\banswer(?=\**:))\**\s*(?:is|:)[\s:*]*([^\n]+?)"
    r"(?=\.\**\s+(?-i:[A-Z])|[\u3002\uff61]|\n|\Z)",
    re.IGNORECASE,
)
# Where an answer ends whose box nothing closes: with its line, its formula or its sentence.
_LINE_END = re.compile(r"\n|\\\]|(?<!\\)\$|(?<=\w)\.\s+(?=[A-Z])")
_CUT = re.compile(r"(?:\A\$+|\A\\[(\[]|\\(?:b(?:o(?:x(?:ed?)?)?)?)?)\Z")  # an answer that has only just been opened
_MATHS = re.compile(r"\$\$([^$]+)\$\$|\$([^$]+)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_NUMBER = re.compile(
    r"(?<![\w.])[+-]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?(?:\s?\\?%)?|(?<![\w.])[+-]?\.\d+"
)
_RELATION = re.compile(r"(?<![<>!\\])=|\\approx")
_HASHES = re.compile(
    r"^[ \t]*####[ \t]*(?!\d+[.)] )((?:[+-][ ]?)?(?:\\?\$|[€£])?[ ]?[+-]?\.?\d[^\n]{0,40}?)[.\s]*\Z", re.MULTILINE
)
_LAST_CHARACTERS = 4_000  # where the last number or formula is looked for


def extract(
    text: str,
    *,
    fallback: Literal["last"] | None = None,
    choices: str = "",
    extractor: Callable[[str], str | None] | None = None,
) -> str | None:
    r"""The final answer in a text: the last box, else a last line `#### 180`, else what the last answer phrase says.

    A box is `\boxed{...}` or `\fbox{...}`. A last box that is empty or that nothing closes gives None, and so does a
    phrase that ends in half a box: the text was cut while the answer was written.

    Args:
        text: What a model wrote.
        fallback: `"last"` takes the last formula or number of a text that has neither box nor phrase; of a formula with
            an equals sign what stands on its right.
        choices: The letters of a multiple-choice question, such as `"ABCD"`: only one of them is an answer, the
            first that stands alone in box or phrase, or else the last in the text.
        extractor: Takes precedence over these rules; they follow where it returns None or only spaces.

    Returns:
        The answer, never empty.
    """
    own = extractor(text) if extractor is not None else None
    if own is not None and own.strip():
        return own.strip()
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
    """What follows the opening brace of the last box, or None where there is no box."""
    start = text.rfind("\\boxed{")
    if start >= 0 and text.find("box", start + 7) < 0:
        return text[start + 7 :]  # nearly always; found from the end, however long the text is
    boxes = list(_BOX.finditer(text))
    return text[boxes[-1].end() :] if boxes else None


def up_to_brace(text: str) -> str | None:
    """The text up to the first unmatched `}`, as in the continuation of an opened box; None if no brace closes it.

    Braces that are escaped by a backslash are text.
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
    """What a text says in a box that stands open before it: up to the box's brace, or else the first line.

    For an answer that a model is made to give: it is to be read even where the model never closes the box. Its first
    line also ends with the formula (`$` or `\\]`), or with the sentence. None where it says nothing.
    """
    closed = up_to_brace(text)
    if closed is not None:
        return closed or None
    return _LINE_END.split(text.strip().lstrip("$"), maxsplit=1)[0].strip() or None


def _behind_hashes(text: str) -> str | None:
    """The number in a last line as GSM8K's solutions have it; other headings are no answers."""
    start = text.rfind("####")
    found = _HASHES.search(text, text.rfind("\n", 0, start) + 1) if start >= 0 else None
    return None if found is None else found[1].strip()


def _phrase(text: str) -> str | None:
    phrases = _PHRASE.findall(text) if "answer" in text.casefold() else ()  # to look for letters alone is far quicker
    answer = phrases[-1].strip().rstrip("*. ").strip() if phrases else ""
    return None if not answer or _CUT.search(answer) else answer


def _choices(text: str, choices: str) -> list[str]:
    """Those of the letters that stand alone in the text."""
    return re.findall(rf"(?<![A-Za-z\\])[{re.escape(choices)}](?![A-Za-z'\u2019])", text)


def _last_formula_or_number(text: str) -> str | None:
    formulas, numbers = (deque(pattern.finditer(text), maxlen=1) for pattern in (_MATHS, _NUMBER))
    if formulas and (not numbers or numbers[0].start() < formulas[0].end()):
        written = next(group for group in formulas[0].groups() if group is not None)
        return _RELATION.split(written)[-1].strip().rstrip(".,").strip() or None
    return numbers[0][0] if numbers else None
