"""JSON record of a sample and epoch; `record.schema.json` in this folder is its schema."""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from scaffolding_ext.documents import json_text
from scaffolding_ext.errors import DatasetError, OutputError
from scaffolding_ext.evaluation.run.jsonl import read_rows

CUT_OFF = "length"  # exit reason of a chain ended by its budget
_SYNC_SECONDS = 1.0  # between two calls of fsync


class RecordError(NamedTuple):
    """Type and message of the exception that left a sample without an output."""

    type: str
    message: str


@dataclass(frozen=True)
class Record:
    """Outcome of one sample.

    Attributes:
        epoch: Repetition of the sample, from 0.
        prompt_hash: See `prompt_hash`; shows if two runs asked the same.
        output: The completion, or None if the request failed.
        correct: True if the answer is right; a failed request has none, which is wrong.
        verdict: `"equal"`, `"different"`, `"undetermined"`, or None without an answer.
        exit_reason: Reason why the controller stopped, if it gives one.
        ledger: `Ledger.to_json()`; of a failed request, the cost until it failed.
        seconds: Wall-clock times: `total` is from submission to the end, `ended_at` is that end in seconds since 1970;
            `within` is the time in which the answer was wanted; the others are `Meter.seconds`.
        prompt: The question; None in records of older runs.
        figures: Published by controllers, by section and name: a number, `[part, whole]`, or counts by name; the
            answers of a vote's samples are scored (best@n, maj@n, mean@n). None in records of older runs.
        audit: Of an audited request, its answer without stopping (`whole`), whether that is another answer (`changed`),
            and whether it is right (`correct`); otherwise None.
        samples: The samples of a vote, if the run keeps them: the fields of `request.figures.KeptSample`, and
            `correct`.
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
    prompt: str | None = None
    kind: str | None = None
    figures: dict[str, dict[str, Any]] | None = None
    audit: dict[str, Any] | None = None
    samples: list[dict[str, Any]] | None = None

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON-compatible dict; `samples` is included only if the run keeps them."""
        fields = vars(self) | {"error": None if self.error is None else self.error._asdict()}
        if self.samples is None:
            del fields["samples"]
        return fields

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Record:
        """Invert `to_json`.

        Raises:
            TypeError: A field is missing or unknown.
        """
        error = fields.get("error")
        return cls(**{**fields, "error": None if error is None else RecordError(**error)})


def prompt_hash(prompt: str) -> str:
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]


@contextmanager
def record_writer(
    path: str | os.PathLike[str], clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[Record], None]]:
    """Yield a function that appends a record to a JSONL file at once, so that a run that dies keeps what it had done.

    Killing the process loses nothing that was written. A machine that fails loses at most the last second.

    Raises:
        OutputError: The file cannot take a record (for example, a full disk); earlier records are kept.
    """
    with Path(path).open("ab", buffering=0) as file:
        synced = clock() - _SYNC_SECONDS

        def write(record: Record) -> None:
            nonlocal synced
            line = memoryview((json_text(record.to_json()) + "\n").encode())
            end = file.tell()
            try:
                while line:
                    line = line[file.write(line) :]
                if clock() - synced >= _SYNC_SECONDS:
                    os.fsync(file.fileno())
                    synced = clock()
            except OSError as error:
                file.seek(file.truncate(end))  # a full disk may have taken part of it
                raise OutputError(f"cannot write to {os.fspath(path)}: {error}; the records before are kept") from error

        yield write
        os.fsync(file.fileno())


def read_records(path: str | os.PathLike[str]) -> list[Record]:
    return list(each_record(path))


def each_record(path: str | os.PathLike[str]) -> Iterator[Record]:
    """Yield the records of a `record_writer`, one per line, without keeping them.

    A killed run may leave an unfinished last line; it is skipped with a warning.

    Raises:
        DatasetError: The file cannot be read, or a line is not a record; it names file and line.
    """
    for row in read_rows(path, "records", json.loads):
        try:
            if row.problem is not None:
                raise ValueError(row.problem)
            record = Record.from_json(row.value)
        except (ValueError, TypeError, AttributeError) as error:
            place = f"{os.fspath(path)}, line {row.number}"
            if not row.is_whole:
                warnings.warn(f"{place}: skipped, because it is incomplete", stacklevel=2)
                continue
            raise DatasetError(
                f"{place}: not an evaluation record: {error}; `eval` writes records to samples.jsonl in its folder"
            ) from error
        yield record
