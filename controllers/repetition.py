"""Repetition at the end of a chain of thought: exact cycles, and lines that differ only in their numbers."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from scaffolding_ext import require

CHARACTERS = 4  # per token, if a worker gives no token ids
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


class Loop(NamedTuple):
    """A repetition at the end of a chain.

    Attributes:
        unit: `"tokens"`; `"characters"` if token ids are unknown; or `"lines"`, ignoring numbers.
        num_repeats: Consecutive repeats, including the first; a long loop may have more.
    """

    unit: Literal["tokens", "characters", "lines"]
    period: int
    num_repeats: int


class Loops:
    """Detects a repetition at the end of a chain.

    A chain loops if its last tokens are one cycle, at least `repeats` times in a row and at least `min_tokens` long, of
    any period up to `max_period`. It also loops if its last whole lines are one cycle of at most `max_lines` lines,
    `line_repeats` times in a row, once each number in them is replaced by one sign ("near-cycle"). If token ids are
    unknown, 4 characters stand for a token.

    `find` keeps no state between calls, and reads a window of bounded size.

    The search is exact. A cycle of period p that covers L symbols means that each of the last L - p symbols equals the
    one p places before it, and L - p >= a = min_tokens * (1 - 1 / repeats) for all cycles that count. So the last `a`
    symbols, the *anchor*, occur again p places earlier; each occurrence of the anchor is verified. Two occurrences
    closer than a / repeats would make the anchor itself a cycle, so there are few.

    The defaults come from 2,560 recorded chains of DeepSeek-R1-Distill-Llama-8B and Qwen2.5-1.5B, with a margin.

    Args:
        repeats: Consecutive repeats of a cycle, including the first; at least 2.
        max_period: Tokens of the longest cycle.
        min_tokens: Minimum tokens of all repeats together.
        line_repeats: Consecutive repeats of a cycle of lines; 0 looks for none.
        max_lines: Lines of the longest cycle of lines.

    Reference: Fine and Wilf, "Uniqueness Theorems for Periodic Functions" (1965): why there are few places. Karp and
        Rabin (1987) search and verify in the same way. Why models loop: arXiv 2206.02369, arXiv 2512.12895.
    """

    def __init__(
        self,
        repeats: int = 4,
        max_period: int = 1024,
        min_tokens: int = 64,
        *,
        line_repeats: int = 24,
        max_lines: int = 8,
    ) -> None:
        self.repeats = require.whole("repeats", repeats, 2)
        self.max_period = require.whole("max_period", max_period)
        self.min_tokens = require.whole("min_tokens", min_tokens, self.repeats)
        self.line_repeats = require.whole("line_repeats", line_repeats, 0)
        if line_repeats == 1:
            require.whole("line_repeats", line_repeats, 2)
        self.max_lines = require.whole("max_lines", max_lines)

    @property
    def reach(self) -> int:
        """Tokens at the end of a chain that `find` needs; four times as many characters."""
        return max(self.repeats * self.max_period, self.min_tokens)

    def find(self, text: str, token_ids: Sequence[int] | None = None) -> Loop | None:
        """Find the repetition at the end of a chain; None if there is none.

        Args:
            token_ids: Its token ids, or the last `reach` of them; None if unknown.
        """
        found = self._cycle(text, CHARACTERS) if token_ids is None else self._cycle(token_ids, 1)
        if found is not None:
            return Loop("characters" if token_ids is None else "tokens", *found)
        return self._cycle_of_lines(text) if self.line_repeats else None

    def _cycle(self, symbols: Sequence[object], scale: int) -> tuple[int, int] | None:
        end, least = len(symbols), self.min_tokens * scale
        for period in _places(symbols, (self.repeats - 1) * least // self.repeats, self.max_period * scale):
            num_alike = max(self.repeats * period, least) - period
            if num_alike + period <= end and _are_alike(symbols, period, num_alike):
                return period, (num_alike + period) // period
        return None

    def _cycle_of_lines(self, text: str) -> Loop | None:
        lines = _last_lines(text, self.max_lines + 1, self.reach * CHARACTERS)
        if len(lines) < 2:
            return None
        last, *others = lines
        around = _NUMBER.split(last)
        head, tail = around[0], around[-1]  # text around its numbers: hardly any other line has both
        alike = [n for n, line in enumerate(others, 1) if line.startswith(head) and line.endswith(tail)]
        known = _without_numbers(last) if alike else ""
        periods = [period for period in alike if _without_numbers(lines[period]) == known]
        if not periods:
            return None
        lines = _last_lines(text, self.line_repeats * max(periods), self.reach * CHARACTERS)
        lines = [_without_numbers(line) for line in lines]
        for period in periods:
            repeated = lines[: self.line_repeats * period]
            is_whole = len(repeated) == self.line_repeats * period
            is_long = sum(map(len, repeated)) >= self.min_tokens * CHARACTERS
            if is_whole and is_long and repeated[period:] == repeated[:-period]:
                return Loop("lines", period, self.line_repeats)
        return None


def _are_alike(symbols: Sequence[Any], period: int, num_alike: int) -> bool:
    """Return True if each of the last `num_alike` symbols equals the one `period` places before; most differ early."""
    end, size = len(symbols), 64
    while True:
        start = end - min(size, num_alike)
        if symbols[start:] != symbols[start - period : end - period]:
            return False
        if size >= num_alike:
            return True
        size *= 4


def _places(symbols: Sequence[Any], num_anchor: int, most: int) -> Iterator[int]:
    """Yield how far before the end the last `num_anchor` symbols occur again, nearest first, up to `most`."""
    start = len(symbols) - num_anchor
    if start <= 0:
        return
    window: Any = symbols[max(0, start - most) :]
    width = 1
    if not isinstance(window, str):  # bytes search as fast as text
        numbers = array("Q", window)
        window, width = numbers.tobytes(), numbers.itemsize
    num_bytes = num_anchor * width
    anchor, last = window[-num_bytes:], len(window) - num_bytes
    at = last
    while (at := window.rfind(anchor, 0, at - 1 + num_bytes)) >= 0:
        if at % width == 0:
            yield (last - at) // width


def _last_lines(text: str, num_lines: int, most: int) -> list[str]:
    """Return the last non-empty whole lines of a text's last `most` characters, the last one first."""
    size = 128 * num_lines
    while True:
        size, found = min(size, most), list[str]()
        parts = text[-size:].split("\n")
        for part in reversed(parts[1 if size < len(text) else 0 : -1]):
            if line := part.strip():
                found.append(line)
                if len(found) == num_lines:
                    return found
        if size >= min(most, len(text)):
            return found
        size *= 4


def _without_numbers(line: str) -> str:
    return _NUMBER.sub("#", line)
