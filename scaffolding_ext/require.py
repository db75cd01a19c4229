"""Argument checks with one sentence per mistake, for functions, controllers, workers and the host."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, SupportsIndex, TypeVar

from scaffolding_ext.errors import ConfigError

T = TypeVar("T")
_MOST_SHOWN, _ENDS = 200, 60  # characters
_NO_NUMBERS = (bool, str, bytes, bytearray)  # although `float` accepts them


@contextmanager
def under(path: str = "") -> Iterator[None]:
    """Prefix the keys of ConfigErrors in this block with a path."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(error.message, ".".join(filter(None, (path, error.key)))) from error


def whole(key: str, value: SupportsIndex, least: int | None = 1, most: int | None = None) -> int:
    """Return the value if it is a whole number within its bounds; booleans are not.

    Raises:
        ConfigError: It is not a whole number, below `least`, or above `most`.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        checked = operator.index(value)
    except TypeError:
        bounds = _bounds(least=least, most=most)  # worded only for an error
        raise ConfigError(f"is {shown(value)}; it must be {_kind('a whole number', bounds)}", key) from None
    if (least is not None and checked < least) or (most is not None and checked > most):
        raise ConfigError(f"is {shown(checked)}; it must be {_bounds(least=least, most=most)}", key)
    return checked


def number(
    key: str,
    value: float,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> float:
    """Return the value if it is a finite number within its bounds; texts and booleans are not.

    Raises:
        ConfigError: It is not a number, not finite, or outside a bound.
    """
    try:
        if isinstance(value, _NO_NUMBERS):
            raise TypeError
        checked = float(value)
    except (TypeError, ValueError, OverflowError):
        bounds = _bounds(least, above, most, below)
        raise ConfigError(f"is {shown(value)}; it must be {_kind('a number', bounds)}", key) from None
    if not math.isfinite(checked):
        bounds = _bounds(least, above, most, below)
        raise ConfigError(f"is {value}; it must be {_kind('a finite number', bounds)}", key)
    if (
        (least is not None and checked < least)
        or (above is not None and checked <= above)
        or (most is not None and checked > most)
        or (below is not None and checked >= below)
    ):
        raise ConfigError(f"is {value}; it must be {_bounds(least, above, most, below)}", key)
    return checked


def share(key: str, value: float) -> float:
    """Return the value if it is a number above 0 and at most 1; raises as `number` does."""
    return number(key, value, above=0, most=1)


def one_of(key: str, value: T, choices: Collection[Any], instead: str = "") -> T:
    """Return the value if it is one of the choices, else raise ConfigError; `instead` names further allowed values."""
    if isinstance(value, str) and value in choices:
        return value
    names = ", ".join(map(str, choices))
    raise ConfigError(f"is {shown(value)}; choose one of {names}{', or give ' if instead else ''}{instead}", key)


def alone(key: str, value: object, **others: object) -> None:
    """Refuse other arguments beside one that sets the same, by a ConfigError; None counts as not given."""
    for name, other in others.items():
        if value is not None and other is not None:
            raise ConfigError(f"conflicts with {name}: give one of the two", key)


def shown(value: object) -> str:
    """The value as an error shows it, shortened in the middle if long."""
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python prints
        return "a number of thousands of digits"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_ENDS]}...{text[-_ENDS:]} ({len(text):,} characters)"


def _bounds(
    least: float | None = None, above: float | None = None, most: float | None = None, below: float | None = None
) -> str:
    bounds = {"at least": least, "above": above, "at most": most, "below": below}
    return " and ".join(f"{words} {bound:g}" for words, bound in bounds.items() if bound is not None)


def _kind(kind: str, bounds: str) -> str:
    return f"{kind}{' of' if bounds.startswith('at ') else ''} {bounds}".rstrip()
