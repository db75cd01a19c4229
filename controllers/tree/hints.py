"""Hints: texts with which branches begin, so that branches try one problem in different ways."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

from scaffolding_ext import require
from scaffolding_ext.documents import decoded, located, parse_json
from scaffolding_ext.errors import ConfigError

T = TypeVar("T")
PACKAGED_HINTS = "configs:branch_hints.json"


def hints_of(hints: str | Sequence[str] | None, file: str | os.PathLike[str] = PACKAGED_HINTS) -> tuple[str, ...]:
    """The list of hints. It is empty where branches differ by chance alone.

    Args:
        hints: The texts, or the name of a domain in the file.
        file: A JSON object of domains, each a list of texts; `configs:NAME` is one that ships with the package.

    Raises:
        ConfigError: The file cannot be read, has no such domain, or a hint is no text.
    """
    if hints is None:
        return ()
    if isinstance(hints, str):
        domains = _read(file)
        found = domains[require.one_of("hints", hints, domains, instead="a list of texts")]
    else:
        found = list(hints)
    if not isinstance(found, list) or not all(isinstance(hint, str) for hint in found):
        raise ConfigError(f"is {found!r}; give a list of texts, or the name of a domain", "hints")
    return tuple(found)


def in_turn(given: Sequence[T], number: int) -> T | None:
    """The item of one branch, where branches get items in turn; None where there are no items."""
    return given[number % len(given)] if given else None


def _read(file: str | os.PathLike[str]) -> dict[str, list[str]]:
    try:
        domains = parse_json(decoded(located(file).read_bytes()))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{os.fspath(file)} {error}", "hints_file") from error
    if not isinstance(domains, dict):
        raise ConfigError(f"{os.fspath(file)} holds no object of domains, each a list of texts", "hints_file")
    return domains
