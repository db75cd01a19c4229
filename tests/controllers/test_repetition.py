"""Repetition at the end of a chain: exactly what a search of every period finds, in time that grows with the length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaffolding_ext.controllers.repetition import CHARACTERS, Loop, Loops
from scaffolding_ext.errors import ConfigError

SMALL = Loops(3, 6, 9, line_repeats=0)
SYMBOLS = st.lists(st.integers(0, 2), max_size=8)


def shortest_period(symbols: Sequence[object], repeats: int, max_period: int, least: int) -> int | None:
    """The definition, tried on every period."""
    for period in range(1, max_period + 1):
        length = max(repeats * period, least)
        if len(symbols) >= length and all(
            symbols[at] == symbols[at - period] for at in range(len(symbols) - length + period, len(symbols))
        ):
            return period
    return None


@given(before=SYMBOLS, cycle=SYMBOLS, times=st.integers(0, 5), rest=st.integers(0, 7))
def test_cycles_of_tokens_are_those_of_the_definition(
    before: list[int], cycle: list[int], times: int, rest: int
) -> None:
    tokens = before + cycle * times + cycle[:rest]
    found = SMALL.find("", tokens)
    assert (None if found is None else found.period) == shortest_period(tokens, 3, 6, 9)
    assert found is None or (found.unit == "tokens" and found.num_repeats >= 3)


@given(before=SYMBOLS, cycle=SYMBOLS, times=st.integers(0, 40), rest=st.integers(0, 7))
def test_without_token_ids_characters_take_their_place(
    before: list[int], cycle: list[int], times: int, rest: int
) -> None:
    text = "".join(map(str, before + cycle * times + cycle[:rest]))
    found = SMALL.find(text)
    assert (None if found is None else found.period) == shortest_period(text, 3, 6 * CHARACTERS, 9 * CHARACTERS)


def test_the_longest_period_counts_and_one_more_does_not() -> None:
    cycle = list(range(1024))
    assert Loops().find("", cycle * 4) == Loop("tokens", 1024, 4)
    assert Loops().find("", cycle * 4 + [0]) == Loop("tokens", 1024, 4)
    assert Loops().find("", [*cycle, 1024] * 4) is None
    assert Loops().find("", (cycle * 4)[1:]) is None


def test_a_loop_that_the_chain_has_left_is_none() -> None:
    assert Loops().find("", [1, 2, 3] * 100) is not None
    assert Loops().find("", [*[1, 2, 3] * 100, 9]) is None


def numbered(line: str, num: int) -> str:
    return "I think.\n" + "".join(line.format(number) + "\n\n" for number in range(num))


def test_lines_that_differ_in_their_numbers_are_a_near_cycle() -> None:
    line = "Wait, is {} * 1,024.5 right? I am not sure."
    assert Loops().find(numbered(line, 24)) == Loop("lines", 1, 24)
    assert Loops().find(numbered(line, 23)) is None
    assert Loops().find(numbered(line, 24) + "Wait, is") == Loop("lines", 1, 24)  # the last one is not whole yet
    assert Loops().find(numbered(line, 24) + "So it is 4.\n") is None
    assert Loops(line_repeats=0).find(numbered(line, 100)) is None


def test_near_cycles_may_have_several_lines_and_none_that_say_hardly_anything() -> None:
    pair = "If x = {0}, then y is not a whole number.\nSo x is not {0}."
    assert Loops().find(numbered(pair, 24)) == Loop("lines", 2, 24)
    assert Loops(max_lines=1).find(numbered(pair, 24)) is None
    assert Loops().find(numbered("{}", 24)) is None
    assert Loops().find(numbered("{}", 24).replace("\n\n", "\n")) is None


class Read(list[int]):
    """Tokens that count how many of them are read."""

    num = 0

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        Read.num += len(found) if isinstance(place, slice) else 1
        return found


def fibonacci_word() -> Iterator[int]:
    """A word that repeats itself as often as one can that never holds a fourth power."""
    word, longer = [0], [0, 1]
    while len(longer) < 20_000:
        word, longer = longer, longer + word
    yield from longer


def test_what_is_read_grows_with_the_length_of_the_chain() -> None:
    tokens = list(fibonacci_word())[:16_384]
    loops, spent = Loops(), {0: 0}
    Read.num = 0
    for position in range(64, len(tokens) + 1, 64):
        assert loops.find("", Read(tokens[:position])) is None
        spent[position] = Read.num
    first, second = spent[8_192] - spent[4_096], spent[16_384] - spent[8_192]
    assert 0 < second <= 2.5 * first  # twice as many tokens
    assert spent[16_384] <= 16_384 // 64 * 20 * loops.reach  # of each look


def test_only_a_window_is_read() -> None:
    loops = Loops(4, 128)
    assert loops.reach == 512
    loop = [5, 6, 7] * 200
    assert loops.find("", loop) == loops.find("", loop[-loops.reach :])


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"repeats": 1}, "repeats"),
        ({"max_period": 0}, "max_period"),
        ({"min_tokens": 3}, "min_tokens"),
        ({"line_repeats": 1}, "line_repeats"),
        ({"max_lines": 0}, "max_lines"),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(arguments: dict[str, int], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Loops(**arguments)  # type: ignore[arg-type]
    assert caught.value.key == key
