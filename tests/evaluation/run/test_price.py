"""Prices are read strictly."""

from __future__ import annotations

import pytest

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.run.price import checked_price, parse_price


def test_prices_are_by_kind() -> None:
    assert parse_price("decoded=2, prefilled=0.5,reused=0") == {"decoded": 2.0, "prefilled": 0.5, "reused": 0.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2", "has '2'; write decoded=2,prefilled=0.5"),
        ("decoded=cheap", "has 'decoded=cheap'; write"),
        ("", "has ''; write"),
        ("decoded=1,decoded=2", "name each kind of tokens once"),
        ("thought=1", "thought"),
        ("decoded=-1", "price.decoded"),
        ("decoded=nan", "price.decoded"),
    ],
)
def test_other_prices_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_price(text)
    assert message in str(caught.value)


def test_prices_of_a_stack_file_are_checked_too() -> None:
    with pytest.raises(ConfigError, match="thought"):
        checked_price({"thought": 1.0})
