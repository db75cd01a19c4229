"""Checks of what a controller, a worker or the host is given: the same sentence for the same mistake everywhere."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, SupportsIndex, TypeVar

from scaffolding_ext.errors import ArgumentTypeError, ConfigError
from scaffolding_ext.maths import checks

T = TypeVar("T")


@contextmanager
def under(path: str = "") -> Iterator[None]:
    """Put the keys of the ConfigErrors of this block under a path; what the checks of `maths` refuse becomes one, too.

    Args:
        path: Key of what is made in the block; empty where the arguments' names are keys themselves.

    Raises:
        ConfigError: Of the kind that was raised; `key` names the argument.
    """
    try:
        yield
    except checks.WrongValueError as error:
        kind = ArgumentTypeError if isinstance(error, checks.WrongTypeError) else ConfigError
        raise kind(error.message, f"{path}.{error.name}" if path else error.name) from None
    except ConfigError as error:
        kept = type(error) if type(error).__init__ is ConfigError.__init__ else ConfigError
        raise kept(error.message, ".".join(filter(None, (path, error.key)))) from error


def whole(key: str, value: SupportsIndex, least: int | None = 1, most: int | None = None) -> int:
    """The value, if it is a whole number within its bounds; True and False are none.

    Raises:
        ConfigError: It is not; an ArgumentTypeError where it is no whole number at all.
    """
    with under():
        return checks.whole(key, value, least, most)


def number(key: str, value: float, **bounds: float) -> float:
    """The value, if it is a finite number within its bounds; texts, True and False are none.

    Args:
        key: Name of the argument.
        value: What was given.
        **bounds: Of `maths.checks.number`: `least`, `above`, `most`, `below`.

    Raises:
        ConfigError: It is not; an ArgumentTypeError where it is no number at all.
    """
    with under():
        return checks.number(key, value, **bounds)


def share(key: str, value: float) -> float:
    """The value, if it is a number above 0 and at most 1.

    Raises:
        ConfigError: It is not; an ArgumentTypeError where it is no number at all.
    """
    return number(key, value, above=0, most=1)


def one_of(key: str, value: T, choices: Collection[Any], instead: str = "") -> T:
    """The value, if it is one of the choices.

    Args:
        key: Name of the argument.
        value: What was given.
        choices: Texts that may be chosen.
        instead: What else may be given, such as `"a function"`, for the message.

    Raises:
        ConfigError: It is none of them.
    """
    with under():
        return checks.one_of(key, value, choices, instead)


def alone(key: str, value: object, **others: object) -> None:
    """Refuse others beside an argument that sets what they would set; None stands for what is not given.

    Raises:
        ConfigError: Both are given.
    """
    for name, other in others.items():
        if value is not None and other is not None:
            raise ConfigError(f"sets what {name} sets, too; give one of the two", key)
