"""The roles of workers, and how a stack's worker of a role is found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from scaffolding_ext.protocol import Worker


class WorkerTag(str, Enum):
    """The roles of workers; the values are the keys of a stack file's `workers`."""

    GENERATION = "generation"
    DRAFT = "draft"
    TARGET = "target"
    REWARD = "reward"
    COMPARE = "compare"

    def __str__(self) -> str:
        return self.value


def tag_name(tag: Any) -> str:
    """The name of a worker's tag: a string itself, or the value of an enum member of any class."""
    return str(getattr(tag, "value", tag))


def tag_names(tags: Iterable[Any]) -> str:
    """The names of some tags for an error message: sorted, or "none"."""
    return ", ".join(sorted(map(tag_name, tags))) or "none"


def worker_key(workers: Mapping[Any, Any], tag: Any) -> Any | None:
    """The key under which the workers hold that of a tag, or None.

    Members of any enum and plain strings are one tag if their values are equal; an equal key goes first.
    """
    if tag in workers:
        return tag
    value = getattr(tag, "value", tag)
    return next((key for key in workers if getattr(key, "value", key) == value), None)


def worker_for(workers: Mapping[Any, Worker], tag: Any) -> Worker | None:
    """The worker of a tag by its `worker_key`, or None."""
    key = worker_key(workers, tag)
    return None if key is None else workers[key]
