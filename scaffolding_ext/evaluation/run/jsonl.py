"""Rows of data files: JSONL and CSV. Each is parsed separately, so that a bad one is reported by its number."""

from __future__ import annotations

import csv
import gzip
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from scaffolding_ext.documents import UTF16, decoded, parse_json
from scaffolding_ext.errors import DatasetError

_MAX_LINE_BYTES = 2**28
_MAX_CELL = 2**28  # characters; Python's limit is 2**17, less than a chain of thought


class Row(NamedTuple):
    """A line that is not empty.

    Attributes:
        number: Of the line, counted from 1.
        problem: Reason why the line is unusable, or None.
        is_whole: True if a line break ends it; an interrupted writer leaves part of a line without one.
    """

    number: int
    value: dict[str, Any]
    problem: str | None
    is_whole: bool


def read_rows(
    path: str | os.PathLike[str], what: str = "dataset", parse: Callable[[str], Any] = parse_json
) -> Iterator[Row]:
    """Yield the rows of a JSONL file, plain or as `.gz`.

    Args:
        what: Kind of file, for errors.
        parse: Parses a line; `json.loads` is five times as fast, but accepts duplicate keys.

    Raises:
        DatasetError: The file cannot be read, or is not UTF-8 text.
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


def read_csv(path: str | os.PathLike[str], what: str = "dataset") -> Iterator[Row]:
    """Yield the rows of a CSV file with a header; an empty cell is None.

    Raises:
        DatasetError: The file cannot be read.
    """
    try:
        csv.field_size_limit(_MAX_CELL)
        table = csv.DictReader(io.StringIO(decoded(Path(path).read_bytes()), newline=""), strict=True)
        num_columns = len(table.fieldnames or ())  # reads the header
        number = table.line_num
        for cells in table:
            surplus = f"has more cells than the header's {num_columns}" if None in cells else None
            yield Row(number + 1, {name: cell or None for name, cell in cells.items()}, surplus, True)
            number = table.line_num
    except (OSError, ValueError, csv.Error) as error:
        raise DatasetError(f"cannot read the {what} {os.fspath(path)}: {error}") from error


def _row(line: bytes, number: int, parse: Callable[[str], Any]) -> Row:
    is_whole = line.endswith(b"\n")
    try:
        value = parse(decoded(line, number).strip())
    except (ValueError, RecursionError) as error:
        problem = str(error).removeprefix(f"line {number}: ")
        return Row(number, {}, f"{problem}; a row of JSONL is one JSON object per line", is_whole)
    if not isinstance(value, dict):
        problem = f"a {type(value).__name__}; the file must be JSONL: one object per line"
        return Row(number, {}, problem, is_whole)
    return Row(number, value, None, is_whole)
