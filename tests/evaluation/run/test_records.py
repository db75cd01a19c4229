"""Records survive the way to a file and back, one line each, and fit their schema."""

from __future__ import annotations

import dataclasses
import importlib.resources
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.run.records import Record, RecordError, prompt_hash, read_records, record_writer
from scaffolding_ext.protocol.meta import Purpose, TokenCounts
from scaffolding_ext.request.ledger import Ledger


def ledger_of(**decoded: int) -> dict[str, Any]:
    ledger = Ledger()
    for purpose, number in decoded.items():
        ledger.add(Purpose(purpose), number)
    return ledger.to_json()


def make(**changes: Any) -> Record:
    fields: dict[str, Any] = {
        "id": "a",
        "epoch": 0,
        "prompt_hash": prompt_hash("What is 6 times 7?"),
        "target": "42",
        "output": "It is \\boxed{42}.\n\u2028",
        "answer": "42",
        "correct": True,
        "verdict": "equal",
        "exit_reason": "end",
        "ledger": ledger_of(chain=9, probe=2),
        "seconds": {"total": 0.5},
        "seed": 2**62,
        "trace": [{"event": "stop", "branch": [0], "seconds": 0.1, "answer": "42"}],
        "error": None,
        "prompt": "What is 6 times 7?",
        "kind": "product",
        "figures": {"Vote": {"samples": 4, "maj@n": [1, 1], "stop_reason": {"vote": 1}}},
    }
    return Record(**fields | changes)


FAILED = make(output=None, answer=None, correct=False, verdict=None, error=RecordError("TaskError", "gone"), seed=None)


@pytest.mark.parametrize("record", [make(), FAILED])
def test_a_record_survives_json(record: Record) -> None:
    assert Record.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_the_writer_appends_and_each_line_is_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    with record_writer(path) as write:
        write(make())
        assert read_records(path) == [make()]
        write(FAILED)
        assert path.read_text().count("\n") == 2
    with record_writer(path) as write:
        write(make(id="b"))
    assert read_records(path) == [make(), FAILED, make(id="b")]


@pytest.mark.parametrize("line", ["{", "3", "{}", '{"id": "a"}', "[" * 100_000])
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "samples.jsonl"
    with record_writer(path) as write:
        write(make())
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DatasetError, match=r"samples\.jsonl, line 2"):
        read_records(path)


def test_a_last_line_that_was_cut_off_is_left_out_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    with record_writer(path) as write:
        write(make())
        write(FAILED)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.warns(UserWarning, match=r"samples\.jsonl, line 2: skipped, because it is incomplete"):
        assert read_records(path) == [make()]


FULL_DISK = """
import resource, sys
from pathlib import Path
from scaffolding_ext.errors import OutputError
from scaffolding_ext.evaluation.run.records import Record, read_records, record_writer
record = Record.from_json(__import__("json").loads(sys.argv[2]))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
with record_writer(sys.argv[1]) as write:
    write(record)
    for _ in range(2):
        try:
            write(record)
        except OutputError as error:
            print(error)
    print(read_records(sys.argv[1]) == [record])
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    write(record)
print(read_records(sys.argv[1]) == [record, record])
"""


def test_a_full_disk_is_an_error_and_leaves_whole_records(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    text = json.dumps(make().to_json())
    command = [sys.executable, "-c", FULL_DISK, str(path), text, str(len(text) * 3 // 2)]  # room for one and a half
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *errors, readable, goes_on = done.stdout.splitlines()
    assert len(errors) == 2
    for error in errors:
        assert error.startswith(f"cannot write to {path}: ")
        assert error.endswith("; the records before are kept")
    assert (readable, goes_on) == ("True", "True")
    assert path.read_text() == 2 * (text + "\n")


def test_records_of_older_runs_have_no_prompt() -> None:
    old = {name: value for name, value in make().to_json().items() if name not in ("prompt", "kind")}
    assert Record.from_json(old) == make(prompt=None, kind=None)


# ---- the schema


@pytest.fixture(scope="module")
def validator() -> Any:
    text = importlib.resources.files("scaffolding_ext.evaluation.run").joinpath("record.schema.json").read_text()
    schema = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("record", [make(), FAILED])
def test_records_fit_the_schema(validator: Any, record: Record) -> None:
    validator.validate(record.to_json())


def test_the_schema_has_the_records_fields(validator: Any) -> None:
    fields = dataclasses.fields(Record)
    assert list(validator.schema["properties"]) == [field.name for field in fields]
    assert validator.schema["required"] == [field.name for field in fields if field.default is dataclasses.MISSING]


def test_the_schema_refuses_what_is_no_record(validator: Any) -> None:
    cases = [
        {"epoch": -1},
        {"prompt_hash": "zz"},
        {"correct": "yes"},
        {"verdict": "maybe"},
        {"ledger": {}},
        {"ledger": ledger_of() | {"by_purpose": {"lunch": TokenCounts()._asdict()}}},
        {"seconds": {}},
        {"trace": [{"event": "stop"}]},
    ]
    assert [changes for changes in cases if validator.is_valid(make(**changes).to_json())] == []


def test_a_trace_may_hold_numbers_and_arrays_of_numpy(tmp_path: Path) -> None:
    trace = [{"event": "stop", "confidence": np.float32(0.5), "scores": np.arange(3), "seen": {"a"}, "path": Path("x")}]
    with record_writer(tmp_path / "samples.jsonl") as write:
        write(make(trace=trace))
    (record,) = read_records(tmp_path / "samples.jsonl")
    assert record.trace == [{"event": "stop", "confidence": 0.5, "scores": [0, 1, 2], "seen": ["a"], "path": "x"}]


def test_a_number_that_is_not_finite_is_null(tmp_path: Path) -> None:
    with record_writer(tmp_path / "samples.jsonl") as write:
        write(make(trace=[{"event": "stop", "confidence": math.nan, "scores": np.array([1.0, -np.inf])}]))
    text = (tmp_path / "samples.jsonl").read_text()
    (event,) = json.loads(text, parse_constant=pytest.fail)["trace"]
    assert event == {"event": "stop", "confidence": None, "scores": [1.0, None]}
