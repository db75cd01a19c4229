"""Files of types of questions: what `budget fit` writes, and `budget solve` and `budget simulate` read."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scaffolding_ext import require
from scaffolding_ext.documents import decoded, parse_json, write_text
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.maths.queueing import TaskType

FIELDS = ("name", "probability", "A", "b", "D", "t0", "c")


def read_tasks(path: str | os.PathLike[str]) -> list[TaskType]:
    """The types in a JSON file: `{"tasks": [{"name": ..., "probability": ..., "A": ..., ...}, ...]}`.

    Keys beside `tasks`, and keys of a type that begin with `_`, are notes.

    Raises:
        ConfigError: The file cannot be read, or a type is wrong.
    """
    name = os.fspath(path)
    try:
        content = parse_json(decoded(Path(path).read_bytes()))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name} {error}") from error
    rows = content.get("tasks") if isinstance(content, dict) else None
    if not isinstance(rows, list) or not rows:
        raise ConfigError(f'{name} has no types; it must hold {{"tasks": [...]}} with at least one', "tasks")
    return [_task(row, f"{name}: tasks[{number}]") for number, row in enumerate(rows)]


def write_tasks(path: str | os.PathLike[str], tasks: Sequence[TaskType], **notes: Any) -> None:
    """Write types to a JSON file, with notes beside them.

    Raises:
        OutputError: It cannot be written.
    """
    rows = [{field: getattr(task, field) for field in FIELDS} for task in tasks]
    write_text(path, json.dumps({"tasks": rows, **notes}, indent=1) + "\n")


def _task(row: Any, place: str) -> TaskType:
    given = {key for key in row if not key.startswith("_")} if isinstance(row, dict) else set()
    if given != set(FIELDS):
        lacks, extra = sorted(set(FIELDS) - given), sorted(given - set(FIELDS))
        raise ConfigError(f"lacks {lacks} and has {extra}; a type has {', '.join(FIELDS)}", place)
    with require.under(place):
        return TaskType(**{field: row[field] for field in FIELDS})
