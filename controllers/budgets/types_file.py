"""Files of types of questions: what `budget fit` writes, and the other commands of `budget` read."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from scaffolding_ext import require
from scaffolding_ext.controllers.budgets.queueing import TaskType
from scaffolding_ext.controllers.budgets.queueing.grid import MeasuredType
from scaffolding_ext.documents import decoded, located, parse_json, write_text
from scaffolding_ext.errors import ConfigError

FIELDS = ("name", "probability", "A", "b", "D", "t0", "c")


def read_tasks(path: str | os.PathLike[str]) -> list[TaskType]:
    """The types in a JSON file: `{"tasks": [{"name": ..., "probability": ..., "A": ..., ...}, ...]}`.

    Keys beside `tasks`, and keys of a type that begin with `_`, are notes. `configs:NAME` is a file that ships with the
    package, such as `configs:queueing_table_1.json`.

    Raises:
        ConfigError: The file cannot be read, or a type is wrong.
    """
    name = os.fspath(path)
    rows = _content(path).get("tasks")
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


def read_model(path: str | os.PathLike[str]) -> str | None:
    """The model whose runs were fitted; None where the file does not say.

    Raises:
        ConfigError: The file cannot be read.
    """
    model = _content(path).get("model")
    return model if isinstance(model, str) else None


def _content(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The object in a JSON file; an empty one where it holds something else."""
    try:
        content = parse_json(decoded(located(path).read_bytes()))
    except OSError as error:
        raise ConfigError(f"cannot read {os.fspath(path)}: {error.strerror}; `budget fit` writes such files") from error
    except ValueError as error:
        raise ConfigError(f"{os.fspath(path)} {error}") from error
    return content if isinstance(content, dict) else {}


def _task(row: Any, place: str) -> TaskType:
    given = {key for key in row if not key.startswith("_")} if isinstance(row, dict) else set()
    if given != set(FIELDS):
        lacks, extra = sorted(set(FIELDS) - given), sorted(given - set(FIELDS))
        raise ConfigError(f"lacks {lacks} and has {extra}; a type has {', '.join(FIELDS)}", place)
    with require.under(place):
        return TaskType(**{field: row[field] for field in FIELDS})


def read_measured(path: str | os.PathLike[str], max_tokens: float) -> list[MeasuredType]:
    """What was measured on the types of a file of `budget fit`, at budgets up to a bound; accuracies only rise.

    Raises:
        ConfigError: The file cannot be read, holds no fits, or was measured above the bound only.
    """
    fits = _content(path).get("fits")
    if not isinstance(fits, list) or not fits:
        raise ConfigError(f"{os.fspath(path)} has none; measured types are in files that `budget fit` writes", "fits")
    shares = {task.name: task.probability for task in read_tasks(path)}
    types = []
    for number, fit in enumerate(fits):
        place = f"{os.fspath(path)}: fits[{number}]"
        try:
            columns = zip(fit["budgets"], fit["monotone"], fit["mean_seconds"], fit["spread_seconds"], strict=True)
            kept = [row for row in columns if row[0] <= max_tokens]
            share = shares[fit["kind"]]
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"is not as `budget fit` writes it: {error!r}; fit again", place) from error
        if not kept:
            raise ConfigError(f"has no budget up to {max_tokens:g}, only {fit['budgets']}; allow more tokens", place)
        with require.under(place):
            types.append(MeasuredType(fit["kind"], share, *map(tuple, zip(*kept, strict=True))))
    return types
