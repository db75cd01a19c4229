"""What tokens cost: `decoded=2,prefilled=0.5`, for a million of each kind."""

from __future__ import annotations

from collections.abc import Mapping

from scaffolding_ext import require
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.run.summary import COUNTS


def parse_price(text: str) -> dict[str, float]:
    """Read `KIND=PRICE,...`.

    Raises:
        ConfigError: It is of another form, or as in `checked_price`.
    """
    price: dict[str, float] = {}
    for part in text.split(","):
        kind, _, amount = part.partition("=")
        try:
            price[kind.strip()] = float(amount)
        except ValueError:
            raise ConfigError(f"has {part.strip()!r}; write decoded=2,prefilled=0.5", "price") from None
    if len(price) < text.count(",") + 1:
        raise ConfigError(f"is {text!r}; name each kind of tokens once", "price")
    return checked_price(price)


def checked_price(price: Mapping[str, float]) -> dict[str, float]:
    """The prices, where each is of a known kind and at least 0.

    Raises:
        ConfigError: One is not.
    """
    for kind, amount in price.items():
        require.one_of("price", kind, COUNTS)
        require.number(f"price.{kind}", amount, least=0)
    return dict(price)
