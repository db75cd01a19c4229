"""Parts of a search from what users give: the object, its name, or `{type, args}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from scaffolding_ext import require
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.registry import Registry

T = TypeVar("T")


def part_from(key: str, known: Registry, kind: type[T], given: Any, *, default: T | None = None) -> Any:
    """A part of a search.

    Args:
        key: Name of the argument.
        known: Where its types are found.
        kind: What it must be.
        given: The part, the name of one with its own defaults, or a mapping of its `type` and `args`.
        default: What None stands for.

    Raises:
        ConfigError: It is none of these, or an argument of the part is wrong.
    """
    if given is None and default is not None:
        return default
    with require.under(key):
        if isinstance(given, str):
            given = known.make(given)
        elif isinstance(given, Mapping):
            if not isinstance(given.get("type"), str) or not given.keys() <= {"type", "args"}:
                raise ConfigError(f"is {dict(given)!r}; give {{type: ..., args: {{...}}}}")
            known.resolve(given["type"])
            try:
                with require.under("args"):
                    given = known.build({"args": {}, **given})
            except ConfigError:
                raise
            except TypeError as error:
                raise ConfigError(f"is {dict(given)!r}, which makes no {given['type']} ({error})") from None
        if not isinstance(given, kind):
            names = ", ".join(known.names())
            raise ConfigError(f"is {require.shown(given)}; give a {known.kind}, or the name of one: {names}")
        return given
