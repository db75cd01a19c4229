"""A run's columns stand for its records, to sum up, to compare and to go on, as long as they fit them."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scaffolding_ext.errors import ConfigError, DatasetError
from scaffolding_ext.evaluation.compare import finished_run
from scaffolding_ext.evaluation.compare.compared import compare_runs
from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.evaluation.run.records import Record, each_record, read_records
from scaffolding_ext.evaluation.run.run_folder import taken_up
from scaffolding_ext.evaluation.run.summary import summarize, summary_of
from scaffolding_ext.evaluation.run.tally import COLUMNS, OUTCOMES, Tally

FIGURES = {"Vote": {"samples": 4, "maj@n": [1, 1], "stop_reason": {"vote": 1}}}
ERROR = {"type": "TaskError", "message": "gone"}


@pytest.fixture
def samples(write_run: Callable[..., Path]) -> Path:
    """A run of three epochs with everything in it that a summary tells of."""
    rows: list[Any] = []
    for number in range(24):
        more: dict[str, Any] = {"epoch": number % 3, "answer": f"{number % 5}", "verdict": "different", "probes": 3}
        more["trace"] = [{"event": "vote", "branch": [], "seconds": 0.1, "num_samples": 4, "num_rounds": 2}]
        more["figures"] = FIGURES if number % 2 else {"Other": {"depth": number}}
        more["seconds"] = {"total": 1.0 + number, "ended_at": 100.0 + number, "chain": 0.5, "first_token": 0.1 * number}
        if number == 7:
            more |= {"verdict": "undetermined"}
        if number == 8:
            more |= {"answer": None, "verdict": None, "exit_reason": "length"}
        rows.append((f"q{number // 3}", number % 2, 10 + number, more))
    return write_run("run", rows) / "samples.jsonl"


def tally_of(records: Iterator[Record] | list[Record]) -> Tally:
    tally = Tally()
    for record in records:
        tally.add(record)
    return tally


def test_columns_that_were_written_sum_up_as_the_records(samples: Path) -> None:
    records = read_records(samples)
    tally_of(records).write(samples)
    tally, num_bytes = Tally.read(samples)
    assert num_bytes == samples.stat().st_size
    assert summary_of(tally) == summarize(records)
    assert (tally.num_samples, tally.num_correct) == (24, 12)
    again = tally_of(records)
    for name, column in tally.columns().items():
        np.testing.assert_array_equal(column, again.columns()[name])
    assert tally.mark(5) == again.mark(5)
    assert OUTCOMES[int(tally.columns()["outcome"][8])] == "cut_off"


def test_a_tally_that_was_read_goes_on(samples: Path) -> None:
    records = read_records(samples)
    lines = samples.read_bytes().splitlines(keepends=True)
    samples.write_bytes(b"".join(lines[:10]))
    tally_of(records[:10]).write(samples)
    samples.write_bytes(b"".join(lines))
    tally, num_bytes = Tally.read(samples)
    assert tally.num_samples == 10
    for record in each_record(samples, num_bytes):
        tally.add(record)
    assert summary_of(tally) == summarize(records)


@pytest.mark.parametrize(
    "change", ["a record", "no columns", "half of the columns", "another version", "units", "answers"]
)
def test_columns_that_do_not_fit_are_left_alone(samples: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tally = Tally(keeps_answers=change != "answers")
    for record in each_record(samples):
        tally.add(record)
    tally.write(samples)
    path = samples.parent / COLUMNS
    if change == "a record":
        samples.write_text(samples.read_text().replace('"epoch": 2, ', '"epoch": 9, '))
    elif change == "no columns":
        path.unlink()
    elif change == "half of the columns":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif change == "another version":
        monkeypatch.setattr("scaffolding_ext.evaluation.run.tally.__version__", "9")
    found, num_bytes = Tally.read(samples, True if change == "units" else None)
    assert (found.num_samples, num_bytes) == (0, 0)


def test_compare_reads_columns_and_no_records(write_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(f"q{n}", n % 3, 100 + n, {"figures": FIGURES}) for n in range(40)]
    other = [(f"q{n}", n % 2, 60 + n, {"figures": FIGURES}) for n in reversed(range(40))]
    folders = [write_run(name, own) for name, own in (("one", rows), ("two", other))]
    expected = compare_runs(folders).to_json()
    for folder in folders:
        tally_of(each_record(folder / "samples.jsonl")).write(folder / "samples.jsonl")
    read: list[Record] = []

    def counted(path: str | os.PathLike[str], num_bytes: int) -> Iterator[Record]:
        for record in each_record(path, num_bytes):
            read.append(record)
            yield record

    monkeypatch.setattr(finished_run, "each_record", counted)
    assert json.dumps(compare_runs(folders).to_json()) == json.dumps(expected)
    assert read == []


def test_a_run_goes_on_from_its_columns_and_the_records_behind_them(samples: Path) -> None:
    records = read_records(samples)
    lines = samples.read_bytes().splitlines(keepends=True)
    samples.write_bytes(b"".join(lines[:20]))
    tally_of(records[:20]).write(samples)
    samples.write_bytes(b"".join(lines))
    asked = [Example(f"q{n}", str(records[3 * n].prompt or f"q{n}"), records[3 * n].target) for n in range(8)]
    tally, num_bytes = Tally.read(samples)
    heard: list[Record] = []

    def hear(record: Record) -> None:
        heard.append(record)
        tally.add(record)

    done = taken_up(samples, asked, 3, hear, tally, num_bytes)
    assert heard == records[20:]
    assert summary_of(tally) == summarize(records)
    assert len(done) == 24
    for changed, error in (
        ([asked[0]._replace(target="another"), *asked[1:]], DatasetError),
        (asked[1:], ConfigError),
    ):
        with pytest.raises(error):
            taken_up(samples, changed, 3, heard.append, tally, num_bytes)
    with pytest.raises(ConfigError, match=r"evaluation\.epochs"):
        taken_up(samples, asked, 2, heard.append, tally, num_bytes)


def test_a_record_takes_little_memory(samples: Path) -> None:
    record = dataclasses.replace(read_records(samples)[0], figures=None, trace=[])
    tally = Tally(keeps_answers=False)
    for number in range(2000):
        tally.add(dataclasses.replace(record, id=f"question-{number}"))
    assert (len(tally._rows) + tally.marks.itemsize * len(tally.marks)) / 2000 <= 60
    assert math.isclose(tally.columns()["seconds"].sum(), 2000 * record.seconds["total"])


def test_votes_of_several_rounds_tell_their_sizes_and_nothing_else_does(samples: Path) -> None:
    vote = {"event": "vote", "num_rounds": 2, "num_samples": 5}
    others = [vote | {"num_rounds": 1, "num_samples": 6}, vote | {"event": "allocate", "num_samples": 7}]
    tally = Tally()
    tally.add(dataclasses.replace(next(each_record(samples)), trace=[vote, *others]))
    assert tally.vote_sizes == {"5": 1}
