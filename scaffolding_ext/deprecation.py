"""Names and arguments that go away: for one minor release they work and warn (docs/public_api.md)."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class ScaffoldingExtDeprecationWarning(FutureWarning):
    """Something that is used here goes away. Python shows it by default; an error filter on it finds every use."""


class Deprecation(NamedTuple):
    """What goes away, and when.

    Attributes:
        old: What is used, as its user writes it.
        new: What to use instead.
        since: The release that warns first, such as `"0.2"`.
        until: The release that no longer has it: the minor release after `since`, or a major one.
    """

    old: str
    new: str
    since: str
    until: str

    def __str__(self) -> str:
        return f"{self.old} is deprecated since {self.since} and goes away in {self.until}; use {self.new}"

    def is_over(self, version: str) -> bool:
        """Whether a release must no longer have it."""
        return _numbers(version) >= _numbers(self.until)

    def warn(self, stacklevel: int = 2) -> None:
        """Warn whoever called the function that calls this."""
        warnings.warn(str(self), ScaffoldingExtDeprecationWarning, stacklevel=stacklevel + 1)


def renamed_argument(old: str, new: str, since: str, until: str) -> Callable[[F], F]:
    """Decorates a function whose keyword argument `old` is now called `new`: the old one warns, and is passed on.

    Raises:
        TypeError: At a call that gives both.
    """
    deprecation = Deprecation(f"the argument {old}", new, since, until)

    def decorate(function: F) -> F:
        if new not in getattr(function, "__wrapped__", function).__code__.co_varnames:
            raise TypeError(f"{function.__qualname__} has no argument {new}")

        @functools.wraps(function)
        def accepts_both(*args: Any, **kwargs: Any) -> Any:
            if old in kwargs:
                if new in kwargs:
                    raise TypeError(f"{function.__qualname__} got {old} and {new}, which are one; give {new} alone")
                deprecation.warn()
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        renamed = getattr(function, "renamed_arguments", {})
        accepts_both.renamed_arguments = renamed | {old: deprecation}  # type: ignore[attr-defined]
        return accepts_both  # type: ignore[return-value]

    return decorate


def _numbers(version: str) -> tuple[int, int]:
    """Major and minor number."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
