"""JSONL: one JSON object a line. Each line is read by itself, so that a bad one is told by its number."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from scaffolding_ext.documents import UTF16, decoded, parse_json
from scaffolding_ext.errors import DatasetError

_MAX_LINE_BYTES = 2**28


class Row(NamedTuple):
    """One line that is not empty.

    Attributes:
        number: Of the line, counted from 1.
        value: The object; empty where there is a problem.
        problem: Why the line is unusable, or None.
        is_whole: Whether a line break ends it; a writer that was stopped leaves half a line without one.
    """

    number: int
    value: dict[str, Any]
    problem: str | None
    is_whole: bool


def read_rows(
    path: str | os.PathLike[str],
    what: str = "dataset",
    parse: Callable[[str], Any] = parse_json,
) -> Iterator[Row]:
    """The rows of a JSONL file, plain or as `.gz`.

    Args:
        path: The file.
        what: What the file is said to be, in errors.
        parse: Reads the text of a line; `json.loads`, five times as fast, takes a key that stands twice.

    Raises:
        DatasetError: The file cannot be read, or is no text in UTF-8 at all.
    """
    name = os.fspath(path)
    try:
        with gzip.open(name, "rb") if name.endswith(".gz") else open(name, "rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES), b""), 1):
                if line.startswith(UTF16):
                    raise ValueError("it is UTF-16; save it as UTF-8")
                if len(line) == _MAX_LINE_BYTES:
                    raise ValueError(f"line {number} is longer than {_MAX_LINE_BYTES:,} bytes")
                if line.strip():
                    yield _row(line, number, parse)
    except (OSError, EOFError, ValueError) as error:
        raise DatasetError(f"cannot read the {what} {name}: {error}") from error


def _row(line: bytes, number: int, parse: Callable[[str], Any]) -> Row:
    is_whole = line.endswith(b"\n")
    try:
        value = parse(decoded(line, number).strip())
    except (ValueError, RecursionError) as error:
        problem = str(error).removeprefix(f"line {number}: ")
        return Row(number, {}, f"{problem}; a row of JSONL is one JSON object on a line of its own", is_whole)
    if not isinstance(value, dict):
        problem = f"a {type(value).__name__}; the file must be JSONL: a row is one object on a line of its own"
        return Row(number, {}, problem, is_whole)
    return Row(number, value, None, is_whole)
