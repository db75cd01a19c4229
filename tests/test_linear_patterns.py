"""Patterns that read a model's text or a client's input take steps in proportion to its length.

A small backtracking matcher runs each pattern and counts its steps, so that no clock decides. On a text of n and of 4 n
pieces a linear pattern takes about 4 times the steps, and a quadratic one about 16 times.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

try:
    from re import _constants as sre  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_constants as sre
    import sre_parse as parser


_IGNORECASE, _MULTILINE, _DOTALL = map(int, (re.I, re.M, re.S))
_PACKAGES = ("answers", "prompts", "serving", "protocol", "controllers")
_PIECES = (
    *(*" \na1A,.$\\{([-_^=*", "\x03", "\\[", "\\(", "$$"),
    *("\\boxed{", "\\boxed ", "\\text{", "\\text ", "\\frac", "\\frac{", "\\frac{1}{", "\\sqrt ", "a ", "1 ", "1,"),
    *("111,", "1.", "1/", "answer:", "the answer is ", "Answer ", "a. ", "#", "^ ", "^{", "\\!", "\\begin{matrix}"),
    *("a_", "a_{", "10^", "a(", "(a,", "\x02a\x03", "{a"),
)
_OPENINGS = {"": "", "answer": "the answer is", "boxed": "\\boxed", "text": "\\text{"}  # by their words
_END = "x"
_NUM_PIECES = 8
_MOST_GROWTH = 7.0  # of the steps, where the text is 4 times as long
_BOUNDED = {  # quadratic patterns, and why their texts are short
    "scaffolding_ext.answers.extraction._MATHS": "it reads the last 4,000 characters of a text",
}


class TooManyStepsError(Exception):
    """More steps than allowed."""


class Matcher:
    """Counts the steps of a pattern as Python's engine backtracks, with neither its shortcuts nor its caches."""

    def __init__(self, pattern: re.Pattern[str], text: str, most: float = float("inf")) -> None:
        self.num_steps = 0
        self._most, self._text, self._flags = most, text, pattern.flags
        self._items = _parsed(pattern)
        self._groups: dict[int, tuple[int, int]] = {}

    def find_all(self) -> list[tuple[int, int]]:
        """The spans of all matches, as `finditer` has them for a pattern that matches no empty text."""
        spans, at = [], 0
        while at <= len(self._text):
            self._groups = {}
            end = next(self._ends(self._items, at, self._flags), None)
            spans += [] if end is None else [(at, end)]
            at = at + 1 if end is None else max(end, at + 1)
        return spans

    def match_all(self) -> bool:
        """True if the whole text matches, as of `fullmatch`."""
        return any(end == len(self._text) for end in self._ends(self._items, 0, self._flags))

    def _ends(self, items: list[Any], at: int, flags: int) -> Iterator[int]:
        """Yield the ends of the items that begin at this position, in the order in which the engine tries them."""
        if not items:
            yield at
            return
        for middle in self._item(items[0], at, flags):
            yield from self._ends(items[1:], middle, flags)

    def _item(self, item: Any, at: int, flags: int) -> Iterator[int]:
        op, value = item
        self._step()
        if op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            least, most, body = value
            yield from self._repeat(body, least, most, at, flags, op)
        elif op is sre.BRANCH:
            for branch in value[1]:
                yield from self._ends(branch, at, flags)
        elif op is sre.SUBPATTERN:
            number, added, removed, body = value
            for end in self._ends(body, at, (flags | added) & ~removed):
                if number is not None:
                    self._groups[number] = (at, end)
                yield end
        elif op in (sre.ASSERT, sre.ASSERT_NOT):
            found = self._looked(*value, at, flags)
            if found == (op is sre.ASSERT):
                yield at
        elif op is sre.AT:
            if self._is_at(value, at):
                yield at
        elif op is sre.GROUPREF:
            begin, end = self._groups.get(value, (0, 0))
            if self._text.startswith(self._text[begin:end], at):
                yield at + end - begin
        elif at < len(self._text) and _is_letter(item)(self._text[at], flags):
            yield at + 1

    def _repeat(self, body: list[Any], least: int, most: Any, at: int, flags: int, op: Any) -> Iterator[int]:
        room = len(self._text) - at if most is sre.MAXREPEAT else min(most, len(self._text) - at)
        if len(body) == 1 and body[0][0] in _OF_ONE_LETTER:
            run, is_one = 0, _is_letter(body[0])
            if op is sre.MAX_REPEAT:
                while run < room and is_one(self._text[at + run], flags):
                    self._step()
                    run += 1
                yield from range(at + run, at + least - 1, -1)
                return
            while run <= room:
                if run >= least:
                    yield at + run
                if run == room or not is_one(self._text[at + run], flags):
                    return
                self._step()
                run += 1
            return
        if op is sre.MIN_REPEAT and least <= 0:
            yield at
        if most is sre.MAXREPEAT or most > 0:
            rest = most if most is sre.MAXREPEAT else most - 1
            for middle in self._ends(body, at, flags):
                if middle > at or least > 0:
                    yield from self._repeat(body, max(0, least - 1), rest, middle, flags, op)
        if op is sre.MAX_REPEAT and least <= 0:
            yield at

    def _step(self) -> None:
        self.num_steps += 1
        if self.num_steps > self._most:
            raise TooManyStepsError

    def _looked(self, body: list[Any], behind: int | None, at: int, flags: int) -> bool:
        """True if the items are ahead, or behind in so many letters."""
        if behind is None:
            return next(self._ends(body, at, flags), None) is not None
        return at >= behind and any(end == at for end in self._ends(body, at - behind, flags))

    def _is_at(self, kind: Any, at: int) -> bool:
        text, name = self._text, str(kind)
        if "BOUNDARY" in name:
            sides = [bool(each) and (each.isalnum() or each == "_") for each in (text[at - 1 : at], text[at : at + 1])]
            return (sides[0] != sides[1]) == (kind is sre.AT_BOUNDARY)
        if "BEGINNING" in name:
            return at == 0 or (bool(self._flags & _MULTILINE) and kind is sre.AT_BEGINNING and text[at - 1] == "\n")
        return at == len(text) or (kind is sre.AT_END and text[at:] == "\n")


@cache
def _parsed(pattern: re.Pattern[str]) -> list[Any]:
    parsed: list[Any] = _plain(parser.parse(pattern.pattern, pattern.flags))
    return parsed


def _plain(part: Any) -> Any:
    """A parsed pattern as lists and tuples, which are read faster than the parser's own type."""
    if isinstance(part, list | parser.SubPattern):
        return [_plain(each) for each in part]
    if isinstance(part, tuple) and (part[0] is sre.ASSERT or part[0] is sre.ASSERT_NOT):
        op, (direction, body) = part
        return op, (_plain(body), body.getwidth()[0] if direction < 0 else None)
    return tuple(map(_plain, part)) if isinstance(part, tuple) else part


_OF_ONE_LETTER = (sre.IN, sre.LITERAL, sre.NOT_LITERAL, sre.ANY)


_LETTERS: dict[int, tuple[Any, Any]] = {}  # by the identity of an item, which is kept beside its test


def _is_letter(item: Any) -> Any:
    if id(item) not in _LETTERS:
        _LETTERS[id(item)] = item, _compiled(item)
    return _LETTERS[id(item)][1]


def _compiled(item: Any) -> Any:
    """A test whether one letter is of a literal or of a set; it also takes the flags."""
    op, value = item
    if op is sre.IN:
        negated = bool(value) and value[0][0] is sre.NEGATE
        parts = [_compiled(part) for part in value[negated:]]
        return lambda letter, flags: any(part(letter, flags) for part in parts) != negated
    if op in (sre.LITERAL, sre.NOT_LITERAL):
        same = chr(value)
        return lambda letter, flags: (
            (letter == same or (bool(flags & _IGNORECASE) and letter.casefold() == same.casefold()))
            == (op is sre.LITERAL)
        )
    if op is sre.RANGE:
        low, high = map(chr, value)
        return lambda letter, flags: (
            low <= letter <= high
            or (bool(flags & _IGNORECASE) and (low <= letter.lower() <= high or low <= letter.upper() <= high))
        )
    if op is sre.CATEGORY:
        kind = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}[str(value).rpartition("_")[2]]
        own = re.compile(kind.upper() if "_NOT_" in str(value) else kind)
        return lambda letter, flags: own.fullmatch(letter) is not None
    assert op in (sre.ANY, sre.ANY_ALL), op
    return lambda letter, flags: letter != "\n" or bool(flags & _DOTALL)


def _patterns() -> Iterator[tuple[str, re.Pattern[str], bool]]:
    """Each repeating pattern of these packages: its name, itself, and whether a text must match it whole."""
    for package in map(importlib.import_module, (f"scaffolding_ext.{name}" for name in _PACKAGES)):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            source = inspect.getsource(module)
            for key, value in vars(module).items():
                for pattern in _in(value):
                    if re.search(r"[*+]|,\}", pattern.pattern):
                        uses = set(re.findall(rf"\b{re.escape(key)}\.(\w+)\(", source))
                        yield f"{found.name}.{key}", pattern, uses == {"fullmatch"}


def _in(value: Any) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern):
        yield value
    for each in value if isinstance(value, tuple | list) else ():
        yield from _in(each)


def _grows_too_much(pattern: re.Pattern[str], is_whole: bool, opening: str, piece: str) -> bool:
    def num_steps(num_pieces: int, most: float) -> int:
        matcher = Matcher(pattern, opening + piece * num_pieces + _END, most)
        matcher.match_all() if is_whole else matcher.find_all()
        return matcher.num_steps

    try:
        num_steps(4 * _NUM_PIECES, _MOST_GROWTH * num_steps(_NUM_PIECES, float("inf")))
    except TooManyStepsError:
        return True
    return False


def test_a_pattern_takes_steps_in_proportion_to_the_text() -> None:
    slow = {
        name
        for name, pattern, is_whole in _patterns()
        for word, opening in _OPENINGS.items()
        if word in pattern.pattern
        if any(_grows_too_much(pattern, is_whole, opening, piece) for piece in _PIECES)
    }
    assert slow == set(_BOUNDED)


def test_the_matcher_tells_a_quadratic_pattern_from_a_linear_one() -> None:
    patterns = (r"a\s*(.*?)\s*b", r"a\s*(\S*)b")
    assert [_grows_too_much(re.compile(each, re.DOTALL), False, "ax", " ") for each in patterns] == [True, False]
