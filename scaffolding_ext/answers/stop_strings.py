"""Stop strings: one rule for the end of a text, for any matcher and any chunking.

A text ends before the stop string that is complete first. If several are complete at the same character, the longest
counts. So the end depends only on the text, not on the pieces in which a model or server sends it.
"""

from __future__ import annotations

import functools
from collections import deque
from typing import NamedTuple

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
        self._longest = max(map(len, strings), default=0)

    def __bool__(self) -> bool:
        return bool(self.strings)

    def cut(self, text: str) -> str:
        places = ((text.find(string), len(string)) for string in self.strings)
        ends = [(start + length, start) for start, length in places if start >= 0]
        return text[: min(ends)[1]] if ends else text

    def end_of(self, text: str, start: int) -> int:
        """Position behind the longest stop string that begins at `start`."""
        return start + max(len(string) for string in self.strings if text.startswith(string, start))

    def certain(self, text: str) -> str:
        """Return the part of a growing text that is final: `cut` of every longer text begins with it."""
        shown = self.cut(text)
        if not self.strings or len(shown) < len(text):
            return shown
        matcher = self.matcher()
        matcher.feed(text[max(0, len(text) - self._longest + 1) :])
        return text[: len(text) - matcher.num_undecided]

    def matcher(self) -> StopMatcher:
        return StopMatcher(_automaton(self.strings))


class StopMatcher:
    """Finds the end of one growing text in time linear in the text, for any strings.

    Attributes:
        start: Start of the stop string in the text; None until one is complete.
        num_undecided: Characters at the end of the text that may begin a stop string.

    Reference: Aho and Corasick, Efficient string matching, CACM 18 (6), 1975.
    """

    def __init__(self, automaton: _Automaton) -> None:
        self.start: int | None = None
        self.num_undecided = 0
        self._automaton = automaton
        self._state = 0
        self._num_read = 0

    def feed(self, part: str) -> bool:
        """Read the next piece; return True if a stop string is complete."""
        children, failures, lengths, depths = self._automaton
        state = self._state
        for number, character in enumerate(part, self._num_read + 1):
            while state and character not in children[state]:
                state = failures[state]
            state = children[state].get(character, 0)
            if lengths[state]:
                self.start = number - lengths[state]
                break
        self._state, self.num_undecided = state, depths[state]
        self._num_read += len(part)
        return self.start is not None


class _Automaton(NamedTuple):
    """Trie of all strings; a state is the longest suffix of the text that begins a string.

    Attributes:
        children: Next state by character, of each state.
        failures: The state of the next shorter suffix.
        lengths: Length of the longest string complete in the state; 0 if none is.
    """

    children: list[dict[str, int]]
    failures: list[int]
    lengths: list[int]
    depths: list[int]


@functools.lru_cache(maxsize=64)
def _automaton(strings: tuple[str, ...]) -> _Automaton:
    made = _Automaton([{}], [0], [0], [0])
    children, failures, lengths, depths = made
    for string in strings:
        state = 0
        for character in string:
            if character not in children[state]:
                children[state][character] = len(children)
                children.append({})
                failures.append(0)
                lengths.append(0)
                depths.append(depths[state] + 1)
            state = children[state][character]
        lengths[state] = len(string)
    waiting = deque(children[0].values())
    while waiting:
        state = waiting.popleft()
        lengths[state] = lengths[state] or lengths[failures[state]]
        for character, child in children[state].items():
            shorter = failures[state]
            while shorter and character not in children[shorter]:
                shorter = failures[shorter]
            failures[child] = children[shorter].get(character, 0)
            waiting.append(child)
    return made
