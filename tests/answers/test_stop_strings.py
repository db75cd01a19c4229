"""The end of a text: one rule for whole texts, for pieces, and for what is certain of a growing text."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaffolding_ext.answers.stop_strings import MOST_CHARACTERS, MOST_STRINGS, StopStrings, stop_strings
from scaffolding_ext.errors import InvalidTaskError

STOPS = st.lists(st.text("ab ", min_size=1, max_size=5), min_size=1, max_size=4).map(tuple)
TEXTS = st.text("ab ", max_size=30)


def first_end(text: str, strings: tuple[str, ...]) -> str:
    """The rule by brute force: the first character with which a string is complete, and the longest such string."""
    for end in range(len(text) + 1):
        complete = [string for string in strings if text[:end].endswith(string)]
        if complete:
            return text[: end - max(map(len, complete))]
    return text


def test_a_text_ends_before_the_string_that_is_complete_first() -> None:
    cases = [
        ("so END OF ANSWER.", ("END OF ANSWER", "OF"), "so END "),  # `OF` is complete first
        ("so END OF ANSWER.", ("ANSWER", "R"), "so END OF "),  # both are complete at once: the longer one counts
        ("aaab", ("aab",), "a"),
        ("nothing", ("x",), "nothing"),
        ("nothing", (), "nothing"),
        ("", ("x",), ""),
    ]
    assert [
        (text, strings, expected)
        for text, strings, expected in cases
        if not StopStrings(strings).cut(text) == expected == first_end(text, strings)
    ] == []


@given(TEXTS, STOPS, st.integers(1, 7))
def test_pieces_end_where_the_whole_text_does(text: str, strings: tuple[str, ...], size: int) -> None:
    stops = StopStrings(strings)
    matcher, read = stops.matcher(), ""
    for start in range(0, len(text), size):
        read += text[start : start + size]
        if matcher.feed(text[start : start + size]):
            break
        assert read[: len(read) - matcher.num_undecided] == stops.certain(read)
    assert text[: matcher.start] == stops.cut(text) == first_end(text, strings)


@pytest.mark.parametrize(("text", "num_undecided"), [("so EN", 2), ("so ENOF", 1), ("so ENx", 0), ("so E", 1)])
def test_what_may_become_a_stop_string_is_undecided(text: str, num_undecided: int) -> None:
    stops = StopStrings(("END", "FIN"))
    matcher = stops.matcher()
    assert (matcher.feed(text), matcher.num_undecided) == (False, num_undecided)
    assert stops.certain(text) == text[: len(text) - num_undecided]


@given(TEXTS, TEXTS, STOPS)
def test_what_is_certain_begins_every_longer_text(text: str, more: str, strings: tuple[str, ...]) -> None:
    stops = StopStrings(strings)
    assert stops.cut(text + more).startswith(stops.certain(text))


@given(TEXTS, STOPS)
def test_nothing_is_held_back_without_need(text: str, strings: tuple[str, ...]) -> None:
    stops = StopStrings(strings)
    held = text.removeprefix(stops.certain(text))
    if stops.cut(text) == text and held:
        assert any(string.startswith(held) for string in strings)


def test_the_cost_of_a_piece_does_not_depend_on_the_text() -> None:
    """A text that nearly completes a long string again and again takes no more calls at its end."""
    matcher, counts = StopStrings(("a" * 200 + "b",)).matcher(), []

    def see(frame: Any, event: str, argument: Any) -> None:
        counts[-1] += event in ("call", "c_call")

    for _ in range(50):
        counts.append(0)
        sys.setprofile(see)
        matcher.feed("a" * 40 + "c")
        sys.setprofile(None)
    assert matcher.start is None
    assert counts[-1] <= counts[1]


@pytest.mark.parametrize(
    ("given_stop", "message"),
    [
        (["x"] * (MOST_STRINGS + 1), "stop has 17 strings; give at most 16"),
        ("x" * (MOST_CHARACTERS + 1), "stop has a string of 257 characters; give at most 256"),
        ([5], "it must be a string or a list of strings"),
    ],
)
def test_stop_strings_of_a_task_are_checked(given_stop: object, message: str) -> None:
    with pytest.raises(InvalidTaskError, match=message):
        stop_strings(given_stop)  # type: ignore[arg-type]
    assert stop_strings(["a", "", "b"]) == ("a", "b")
    assert stop_strings(None) == stop_strings("") == ()
