"""Parts of a search from what users give: the object, its name, or `{type, args}`."""

from __future__ import annotations

from typing import Any, TypeVar

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
    return default if given is None and default is not None else known.obtain(given, key)
