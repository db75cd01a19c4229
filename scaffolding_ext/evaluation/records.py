"""One JSON record a sample and epoch; `record.schema.json` beside this file is its schema."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from scaffolding_ext.errors import DatasetError


class RecordError(NamedTuple):
    """Why a sample has no output: the exception's type and message."""

    type: str
    message: str


@dataclass(frozen=True)
class Record:
    """What became of one sample.

    Attributes:
        id: The sample's id.
        epoch: Repetition of the sample, from 0.
        prompt_hash: Tells whether two runs asked the same; see `prompt_hash`.
        target: The right answer.
        output: The completion, or None where the request failed.
        answer: The extracted answer, or None.
        correct: Whether the answer is right; a failed request has none, which is wrong.
        verdict: How it was compared: `"equal"`, `"different"`, `"undetermined"`, or None without an answer.
        exit_reason: Why the controller stopped, where it says so.
        ledger: `Ledger.to_json()`; of a failed request what it had cost by then.
        seconds: Wall-clock times: `total` is from submission to the end.
        seed: The request's own seed, or None.
        trace: The controller's decisions.
        error: Why the request failed, or None.
    """

    id: str
    epoch: int
    prompt_hash: str
    target: str
    output: str | None
    answer: str | None
    correct: bool
    verdict: str | None
    exit_reason: str | None
    ledger: dict[str, Any]
    seconds: dict[str, float]
    seed: int | None
    trace: list[dict[str, Any]]
    error: RecordError | None

    def to_json(self) -> dict[str, Any]:
        """A dict that JSON can hold."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return fields | {"error": None if self.error is None else self.error._asdict()}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Record:
        """The inverse of `to_json`.

        Raises:
            TypeError: A field is missing or unknown.
        """
        error = fields.get("error")
        return cls(**{**fields, "error": None if error is None else RecordError(**error)})


def prompt_hash(prompt: str) -> str:
    """The first 16 hexadecimal digits of the prompt's SHA-256."""
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]


@contextmanager
def record_writer(path: str | os.PathLike[str]) -> Iterator[Callable[[Record], None]]:
    """A function that appends a record to a JSONL file, flushed at once: a run that dies leaves what it had done."""
    with Path(path).open("a", encoding="utf-8") as file:

        def write(record: Record) -> None:
            file.write(json.dumps(record.to_json()) + "\n")
            file.flush()

        yield write


def read_records(path: str | os.PathLike[str]) -> list[Record]:
    """Read what a `record_writer` wrote.

    Raises:
        DatasetError: The file cannot be read, or a line is no record; it names file and line.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"cannot read the records {os.fspath(path)}: {error}") from error
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(Record.from_json(json.loads(line)))
        except (ValueError, TypeError, AttributeError) as error:
            raise DatasetError(f"{os.fspath(path)}, line {number}: no evaluation record: {error}") from error
    return records
