"""Extract an answer from text, and decide cheaply whether two answers are equal.

One notion of equality serves votes, probes and scoring. What the fast path here cannot decide is UNDETERMINED;
controllers then ask a worker with a `CompareTask`, and never compute symbolically themselves.
"""

from __future__ import annotations

import re
from enum import Enum
from fractions import Fraction

_BOX = re.compile(r"\\boxed\s*\{")
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{([^{}]+)\}|(\d))\s*(?:\{([^{}]+)\}|(\d))")
_NUMBER = re.compile(r"[+-]?(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)(?:\.\d+)?|[+-]?\.\d+")
_RATIO = re.compile(r"([+-]?)\(?([+-]?[\d.,]+)\)?/\(?([+-]?[\d.,]+)\)?")
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_NOISE = re.compile(r"\\(?:left|right)(?![a-z])|\\!|\\,(?=\d{3}(?!\d))|\\(?=%)|\$")
_SPACES = re.compile(r"(?:\\[,;:> ]|\s)+")
_LOOSE_SPACE = re.compile(r"(?<!\d) | (?!\d)")  # between two digits it stays: "3 1/2" is not 31/2
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_WORD = re.compile(r"[A-Za-z]+")
_OPTIONS = "ABCDEabcde"
# What follows an answer phrase, up to the end of its sentence or line; the full stop of a decimal ends nothing.
_PHRASE = re.compile(
    r"(?:final answer|the answer)\s*(?:is|:)[\s:*]*([^\n]+?)(?=\.\**\s+(?-i:[A-Z])|\n|\Z)", re.IGNORECASE
)
_CUT = re.compile(r"(?:\A\$+|\A\\[(\[]|\\(?:b(?:o(?:x(?:ed?)?)?)?)?)\Z")  # an answer that has only just been opened
_LONGEST_FAST = 1_000  # characters; longer answers are left to a worker


class Verdict(Enum):
    """Whether two answers are equal."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNDETERMINED = "undetermined"


def extract(text: str) -> str | None:
    r"""The final answer in a text: the last `\boxed{...}`, else what the last answer phrase's sentence says, else None.

    A last box that is empty or that nothing closes gives None, and so does a phrase that ends in half a box: the text
    was cut while the answer was written.
    """
    boxes = list(_BOX.finditer(text))
    if boxes:
        return up_to_brace(text[boxes[-1].end() :]) or None
    phrases = _PHRASE.findall(text)
    answer = phrases[-1].strip().rstrip("*. ").strip() if phrases else ""
    return None if not answer or _CUT.search(answer) else answer


def up_to_brace(text: str) -> str | None:
    """The text up to the first unmatched `}`, as in the continuation of an opened box; None if no brace closes it.

    Braces that are escaped by a backslash are text.
    """
    depth = 0
    for token in _BRACE.finditer(text):
        if token[0] == "{":
            depth += 1
        elif token[0] == "}":
            if depth == 0:
                return text[: token.start()].strip()
            depth -= 1
    return None


def compare(a: str, b: str) -> Verdict:
    """Decide equality without symbolic algebra, in time linear in the length.

    Numbers (integers, decimals, fractions, thousands separators) are compared exactly; a percentage equals no plain
    number. Plain words are compared without regard to case, single letters only where they can be options (A to E).
    """
    if len(a) > _LONGEST_FAST or len(b) > _LONGEST_FAST:
        return Verdict.EQUAL if a == b else Verdict.UNDETERMINED
    left, right = normalize(a), normalize(b)
    if left == right:
        return Verdict.EQUAL if left else Verdict.UNDETERMINED
    if _WORD.fullmatch(left) and left.lower() == right.lower() and (len(left) > 1 or left in _OPTIONS):
        return Verdict.EQUAL
    if left.endswith("%") and right.endswith("%"):
        left, right = left[:-1], right[:-1]
    left_number, right_number = to_number(left), to_number(right)
    if left_number is not None and right_number is not None:
        return Verdict.EQUAL if left_number == right_number else Verdict.DIFFERENT
    plain = [
        number is not None or _WORD.fullmatch(side) for number, side in ((left_number, left), (right_number, right))
    ]
    return Verdict.DIFFERENT if all(plain) else Verdict.UNDETERMINED


def normalize(answer: str) -> str:
    r"""Strip what carries no meaning: spaces, `$`, `\left`, `\right`, thin spaces, `\text{}`, a final full stop.

    A space between two digits stays, unless it is a thin one that separates thousands.
    """
    text = _TEXT.sub(r"\1", answer.strip())
    text = _FRACTION.sub(lambda m: f"({m[1] or m[2]})/({m[3] or m[4]})", text)
    text = _SPACES.sub(" ", _NOISE.sub("", text))
    return _LOOSE_SPACE.sub("", text).rstrip(".")


def to_number(normalized: str) -> Fraction | None:
    """The exact value of a normalised integer, decimal or fraction of them; None for anything else."""
    if _NUMBER.fullmatch(normalized):
        return Fraction(normalized.replace(",", ""))
    ratio = _RATIO.fullmatch(normalized)
    if ratio and all(_NUMBER.fullmatch(ratio[i]) for i in (2, 3)):
        denominator = Fraction(ratio[3].replace(",", ""))
        if denominator:
            value = Fraction(ratio[2].replace(",", "")) / denominator
            return -value if ratio[1] == "-" else value
    return None


class AnswerClasses:
    """Numbers the classes of equal answers in order of first appearance; undetermined pairs count as different."""

    def __init__(self) -> None:
        self.representatives: list[str] = []
        self.num_undetermined = 0
        self._known: dict[str, int] = {}

    def classify(self, answer: str) -> int:
        """The class of the answer, a new one if it equals none before."""
        known = self._known.get(answer)
        if known is not None:
            return known
        undetermined = False
        for number, representative in enumerate(self.representatives):
            verdict = compare(answer, representative)
            if verdict is Verdict.EQUAL:
                self._known[answer] = number
                return number
            undetermined |= verdict is Verdict.UNDETERMINED
        self.num_undetermined += undetermined
        self._known[answer] = len(self.representatives)
        self.representatives.append(answer)
        return len(self.representatives) - 1
