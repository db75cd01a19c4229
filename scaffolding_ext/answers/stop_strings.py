"""Stop strings: one rule for the end of a text, for any matcher and any chunking.

A text ends before the stop string that is complete first. If several are complete at the same character, the longest
counts. So the end depends only on the text, not on the pieces in which a model or server sends it.
"""

from __future__ import annotations

import functools

from scaffolding_ext.errors import InvalidTaskError

MOST_STRINGS = 16
MOST_CHARACTERS = 256  # of one string


def stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    """Return a task's non-empty stop strings; InvalidTaskError if they are not strings, too many or too long."""
    strings = (stop,) if isinstance(stop, str) else () if stop is None else stop
    if not isinstance(strings, list | tuple) or not all(isinstance(string, str) for string in strings):
        raise InvalidTaskError(f"stop is {stop!r}; it must be a string or a list of strings")
    found = tuple(filter(None, strings))
    if len(found) > MOST_STRINGS:
        raise InvalidTaskError(f"stop has {len(found)} strings; give at most {MOST_STRINGS}")
    longest = max(map(len, found), default=0)
    if longest > MOST_CHARACTERS:
        raise InvalidTaskError(f"stop has a string of {longest} characters; give at most {MOST_CHARACTERS}")
    return found


class StopStrings:
    def __init__(self, strings: tuple[str, ...] = ()) -> None:
        self.strings = strings
        self.longest = max(map(len, strings), default=0)
        self._beginnings = _beginnings(strings)

    def __bool__(self) -> bool:
        return bool(self.strings)

    def cut(self, text: str) -> str:
        first: tuple[int, int] | None = None  # end and start
        for string in self.strings:
            start = text.find(string)
            if start >= 0 and (first is None or (start + len(string), start) < first):
                first = start + len(string), start
        return text if first is None else text[: first[1]]

    def end_of(self, text: str, start: int) -> int:
        """Position behind the longest stop string that begins at `start`."""
        return start + max(len(string) for string in self.strings if text.startswith(string, start))

    def len_undecided(self, text: str) -> int:
        """Length of the longest end of a text that begins a stop string."""
        for length in range(min(self.longest - 1, len(text)), 0, -1):
            if text[-length:] in self._beginnings:
                return length
        return 0

    def certain(self, text: str) -> str:
        """Return the part of a growing text that is final: `cut` of every longer text begins with it."""
        shown = self.cut(text)
        return shown if len(shown) < len(text) else text[: len(text) - self.len_undecided(text)]

    def matcher(self) -> StopMatcher:
        return StopMatcher(self)


@functools.lru_cache(maxsize=64)
def _beginnings(strings: tuple[str, ...]) -> frozenset[str]:
    return frozenset(string[:end] for string in strings for end in range(1, len(string)))


class StopMatcher:
    """Finds the end of one growing text.

    Attributes:
        start: Start of the stop string in the text; None until one is complete.
        num_undecided: Characters at the end of the text that may begin a stop string.
    """

    def __init__(self, stops: StopStrings) -> None:
        self.start: int | None = None
        self.num_undecided = 0
        self._stops = stops
        self._num_dropped = 0  # characters before the tail
        self._tail = ""  # the end of the text, which a stop string may begin

    def feed(self, part: str) -> bool:
        """Read the next piece; return True if a stop string is complete."""
        if self.start is None:
            text = self._tail + part
            cut = self._stops.cut(text)
            if len(cut) < len(text):
                self.start = self._num_dropped + len(cut)
            self.num_undecided = self._stops.len_undecided(text)
            self._tail = text[max(0, len(text) - self._stops.longest + 1) :]
            self._num_dropped += len(text) - len(self._tail)
        return self.start is not None
