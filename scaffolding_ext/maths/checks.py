"""Checks of arguments, with one sentence for each mistake; `scaffolding_ext.require` makes ConfigErrors of them."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from typing import Any, SupportsIndex, TypeVar

T = TypeVar("T")
_MOST_SHOWN, _ENDS = 200, 60  # characters


class WrongValueError(ValueError):
    """An argument is outside its range.

    Attributes:
        name: The argument.
        message: What it is, and what it must be.
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name} {message}")
        self.name = name
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.message)


class WrongTypeError(WrongValueError, TypeError):
    """An argument is of another type, such as a text for a number."""


def whole(name: str, value: SupportsIndex, least: int | None = 1, most: int | None = None) -> int:
    """The value, if it is a whole number within its bounds; True and False are none.

    Raises:
        WrongTypeError: It is no whole number.
        WrongValueError: It is below `least`, or above `most`.
    """
    bounds = _said(least=least, most=most)
    try:
        if isinstance(value, bool):
            raise TypeError
        checked = operator.index(value)
    except TypeError:
        raise WrongTypeError(name, f"is {shown(value)}; it must be {_kind('a whole number', bounds)}") from None
    if (least is not None and checked < least) or (most is not None and checked > most):
        raise WrongValueError(name, f"is {shown(checked)}; it must be {bounds}")
    return checked


def number(
    name: str,
    value: float,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> float:
    """The value, if it is a finite number within its bounds; texts, True and False are none.

    Raises:
        WrongTypeError: It is no number.
        WrongValueError: It is not finite, or outside a bound.
    """
    bounds = _said(least, above, most, below)
    try:
        if isinstance(value, bool | str | bytes | bytearray):
            raise TypeError
        checked = float(value)
    except (TypeError, ValueError, OverflowError):
        raise WrongTypeError(name, f"is {shown(value)}; it must be {_kind('a number', bounds)}") from None
    if not math.isfinite(checked):
        raise WrongValueError(name, f"is {value}; it must be {_kind('a finite number', bounds)}")
    if (
        (least is not None and checked < least)
        or (above is not None and checked <= above)
        or (most is not None and checked > most)
        or (below is not None and checked >= below)
    ):
        raise WrongValueError(name, f"is {value}; it must be {bounds}")
    return checked


def share(name: str, value: float) -> float:
    """The value, if it is a number above 0 and at most 1.

    Raises:
        WrongTypeError: It is no number.
        WrongValueError: It is outside these bounds.
    """
    return number(name, value, above=0, most=1)


def one_of(name: str, value: T, choices: Collection[Any], instead: str = "") -> T:
    """The value, if it is one of the choices.

    Args:
        name: The argument.
        value: What was given.
        choices: Texts that may be chosen.
        instead: What else may be given, such as `"a function"`, for the message.

    Raises:
        WrongValueError: It is none of them.
    """
    if isinstance(value, str) and value in choices:
        return value
    names = ", ".join(map(str, choices))
    raise WrongValueError(name, f"is {shown(value)}; choose one of {names}{', or give ' if instead else ''}{instead}")


def shown(value: object) -> str:
    """A value as a message repeats it: the middle of a long one is left out."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of more digits than Python writes out
        return "a number of thousands of digits"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_ENDS]}...{text[-_ENDS:]} ({len(text):,} characters)"


def _said(
    least: float | None = None, above: float | None = None, most: float | None = None, below: float | None = None
) -> str:
    bounds = {"at least": least, "above": above, "at most": most, "below": below}
    return " and ".join(f"{words} {bound:g}" for words, bound in bounds.items() if bound is not None)


def _kind(kind: str, bounds: str) -> str:
    return f"{kind}{' of' if bounds.startswith('at ') else ''} {bounds}".rstrip()
