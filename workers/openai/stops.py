"""Stop strings of answers that come as token ids alone, which their server does not match."""

from __future__ import annotations

from collections.abc import Callable


class StopStrings:
    """Finds where the first of some strings ends in a growing list of token ids.

    Args:
        strings: Any of them ends the answer; none is empty.
        decode: The text of token ids.
    """

    def __init__(self, strings: tuple[str, ...], decode: Callable[[list[int]], str]) -> None:
        self._strings = strings
        self._decode = decode
        self._reach = max(len(string.encode()) for string in strings) + 4  # tokens that one can lie on, and a margin

    def end_in(self, ids: list[int], num_new: int) -> int | None:
        """How many of the ids there are once the first string is complete; None where there is none yet.

        Args:
            ids: All so far.
            num_new: Those that were not looked at before.
        """
        if not self._has_one(ids[-(self._reach + num_new) :]):
            return None
        low, high = max(1, len(ids) - num_new), len(ids)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._has_one(ids[:middle]) else (middle + 1, high)
        return low

    def before(self, text: str) -> str:
        """The text before the first of the strings; all of it where there is none."""
        return text[: min((position for string in self._strings if (position := text.find(string)) >= 0), default=None)]

    def _has_one(self, ids: list[int]) -> bool:
        text = self._decode(ids)
        return any(string in text for string in self._strings)
