"""Going on with a run: nothing finished is lost or done again, and another run is refused by the name of the key."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.errors import ConfigError, DatasetError
from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.evaluation.run.records import Record, RecordError, prompt_hash, read_records, record_writer
from scaffolding_ext.evaluation.run.run_folder import check_config, fingerprint, mend, taken_up

LEDGER = {"total": {"decoded": 1, "prefilled": 0, "reused": 0}, "by_purpose": {}, "num_unmetered_tasks": 0}
SAMPLES = [Example("a", "say 1", "1"), Example("b", "say 2", "2")]


def record_of(sample: Example, epoch: int = 0) -> Record:
    hashed, target = prompt_hash(sample.prompt), sample.target
    return Record(
        sample.id, epoch, hashed, target, "ü\u2028", "1", True, "equal", "end", LEDGER, {"total": 0.5}, 7, [], None
    )


def written(path: Path, *records: Record) -> Path:
    with record_writer(path) as write:
        for record in records:
            write(record)
    return path


# ---- a torn last line


@pytest.mark.filterwarnings("ignore:.*it is incomplete")
def test_wherever_a_line_was_torn_the_records_before_it_stay(tmp_path: Path) -> None:
    whole = [record_of(SAMPLES[0]), record_of(SAMPLES[1])]
    data = written(tmp_path / "samples.jsonl", *whole).read_bytes()
    first = data.index(b"\n") + 1
    path = tmp_path / "torn.jsonl"
    for end in range(len(data) + 1):
        path.write_bytes(data[:end])
        if not end:
            continue
        mend(path, keeps_failed=False)
        assert read_records(path) == whole[: (end >= first - 1) + (end >= len(data) - 1)]
        assert path.read_bytes() in (b"", data[:first], data)


def test_failed_records_are_taken_out_unless_a_budget_paid_for_them(tmp_path: Path) -> None:
    failed = dataclasses.replace(record_of(SAMPLES[1]), error=RecordError("TaskError", "the server is gone"))
    path = written(tmp_path / "samples.jsonl", record_of(SAMPLES[0]), failed)
    mend(path, keeps_failed=True)
    assert len(read_records(path)) == 2
    mend(path, keeps_failed=False)
    assert read_records(path) == [record_of(SAMPLES[0])]


# ---- what is on disk against what is asked for


def test_records_are_taken_up_by_id_and_epoch(tmp_path: Path) -> None:
    path = written(tmp_path / "samples.jsonl", record_of(SAMPLES[0], 1), record_of(SAMPLES[1]))
    heard: list[Record] = []
    done = taken_up(path, SAMPLES, 2, heard.append)
    assert [job for job in itertools.product("ab", (0, 1)) if job in done] == [("a", 1), ("b", 0)]
    assert len(done) == 2
    assert heard == read_records(path)


@pytest.mark.parametrize(
    ("samples", "epochs", "key"), [(SAMPLES, 1, "evaluation.epochs"), (SAMPLES[1:], 2, "evaluation.limit")]
)
def test_a_run_cannot_be_made_smaller(tmp_path: Path, samples: list[Example], epochs: int, key: str) -> None:
    path = written(tmp_path / "samples.jsonl", record_of(SAMPLES[0], 1))
    with pytest.raises(ConfigError, match="may have more questions and epochs, not fewer") as caught:
        taken_up(path, samples, epochs, lambda record: None)
    assert caught.value.key == key


@pytest.mark.parametrize("changes", [{"prompt": "say one"}, {"target": "one"}])
def test_a_question_that_has_changed_is_refused_by_its_id(tmp_path: Path, changes: dict[str, str]) -> None:
    path = written(tmp_path / "samples.jsonl", record_of(SAMPLES[0]))
    with pytest.raises(DatasetError, match="the question 'a' has changed since"):
        taken_up(path, [SAMPLES[0]._replace(**changes)], 1, lambda record: None)


def test_a_record_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "samples.jsonl", record_of(SAMPLES[0]), record_of(SAMPLES[0]))
    with pytest.raises(DatasetError, match="holds 'a' in epoch 0 twice"):
        taken_up(path, SAMPLES, 1, lambda record: None)


# ---- the stack

CONFIG: dict[str, Any] = {
    "controller": {"type": "X", "args": {"chunk_size": 8}},
    "workers": {"generation": {"type": "W"}},
    "seed": 0,
    "max_parallel_requests": 4,
    "evaluation": {"epochs": 1},
}


def changed(**changes: Any) -> dict[str, Any]:
    return json.loads(json.dumps(CONFIG)) | changes


@pytest.mark.parametrize("same", [changed(), changed(max_parallel_requests=9), changed(evaluation={"epochs": 5})])
def test_how_much_and_how_fast_may_change(same: dict[str, Any]) -> None:
    check_config(same, CONFIG, Path("run"))
    assert fingerprint(same) == fingerprint(CONFIG)


@pytest.mark.parametrize(
    ("other", "key", "values"),
    [
        (changed(seed=1), "seed", "is 1, but the run in run has 0"),
        (changed(deadline=5.0), "deadline", "is 5.0, but the run in run has not there"),
        (changed(controller={"type": "X", "args": {"chunk_size": 9}}), "controller.args.chunk_size", "is 9, but the"),
        (changed(controller={"type": "X"}), "controller.args", "is not there, but the run in run has {'chunk_size'"),
        (changed(prompt=None), "prompt", "is None, but the run in run has not there"),
        ({key: value for key, value in CONFIG.items() if key != "seed"}, "seed", "is not there, but the run in run ha"),
    ],
)
def test_another_stack_is_refused_by_the_key(other: dict[str, Any], key: str, values: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_config(other, CONFIG, Path("run"))
    assert caught.value.key == key
    assert values in caught.value.message
    assert fingerprint(other) != fingerprint(CONFIG)
