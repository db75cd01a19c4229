"""Labelled samples from each kind of file."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.calibrate.samples import fingerprint, read_votes
from scaffolding_ext.evaluation.run.records import Record, RecordError, record_writer


def write(path: Path, rows: list[Any]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


def record_of(identity: str, epoch: int, answer: str | None, decoded: int, error: RecordError | None = None) -> Record:
    counts = {"decoded": decoded, "prefilled": 5, "reused": 0}
    ledger = {"total": counts, "by_purpose": {"chain": counts}, "num_unmetered_tasks": 0}
    correct = None if error else answer == "7"
    return Record(
        identity, epoch, "0" * 16, "7", answer, answer, correct, None, None, ledger, {"total": 1.0}, 0, [], error
    )


def test_epochs_of_a_record_are_its_samples(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    with record_writer(path) as add:
        for record in (
            record_of("b", 1, "7.0", 12),
            record_of("a", 0, "6", 9),
            record_of("b", 0, "8", 11),
            record_of("a", 1, None, 10),
        ):
            add(record)
    assert read_votes(path) == [
        LabelledVote("b", [0, 1], [False, False], [11, 12]),
        LabelledVote("a", [0, -1], [False, False], [9, 10]),
    ]


def test_failed_records_are_no_samples_and_then_questions_differ(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    with record_writer(path) as add:
        add(record_of("a", 0, "7", 9))
        add(record_of("a", 1, None, 9, RecordError("TaskError", "gone")))
        add(record_of("b", 0, "7", 9))
        add(record_of("b", 1, "7", 9))
    with pytest.raises(DatasetError, match="1 to 2 samples"):
        read_votes(path)


def test_samples_with_their_sources_labels_and_rewards(tmp_path: Path) -> None:
    samples = [
        {"text": "so \\boxed{\\frac12}", "num_tokens": 20, "prm_score": 0.9, "correct_by_source": True},
        {"text": "so \\boxed{0.5}", "num_tokens": 30, "prm_score": 0.2, "correct_by_source": True},
        {"text": "well", "num_tokens": 40, "prm_score": 0.1, "correct_by_source": False},
    ]
    path = write(tmp_path / "s.jsonl", [{"id": "q", "answer": "1/2", "samples": samples}])
    assert read_votes(path) == [
        LabelledVote("q", [0, 0, -1], [True, True, False], [20, 30, 40], rewards=[0.9, 0.2, 0.1])
    ]


def test_samples_without_labels_are_scored(tmp_path: Path) -> None:
    samples = [{"text": "\\boxed{4}", "num_tokens": 2}, {"text": "\\boxed{5}", "num_tokens": 3}]
    path = write(tmp_path / "s.jsonl", [{"id": "q", "answer": "5", "samples": samples}])
    assert read_votes(path) == [LabelledVote("q", [0, 1], [False, True], [2, 3])]


def test_chains_of_drafts(tmp_path: Path) -> None:
    def chain(number: int, *turns: tuple[str, float | None, str | None]) -> dict[str, Any]:
        parts = [{"draft": draft, "ppl": ppl, "target": target, "percentile": 0.5} for draft, ppl, target in turns]
        return {"question": "q", "answer": "13", "chain": number, "turns": parts}

    rows = [
        chain(1, ("so \\boxed{12}", math.e, None)),
        chain(0, ("first ", math.e, "then "), ("\\boxed{13}", math.e**3, None), ("", None, None)),
    ]
    (vote,) = read_votes(write(tmp_path / "chains.jsonl.gz", rows))
    assert (vote.id, vote.classes, vote.correct, vote.lengths) == ("q", [0, 1], [True, False], [1500, 500])
    assert vote.logprobs == pytest.approx([-2, -1])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "is empty"),
        ([[1]], "line 1: a list; the file must be JSONL"),
        ([{"prompt": "x"}], r"line 1: has the fields \['prompt'\]; give evaluation records"),
        ([{"turns": []}, {"samples": []}], "line 2: has no 'turns'"),
        ([{"samples": [{"text": "x"}], "id": "q", "answer": "1"}], "lacks a field"),
    ],
)
def test_unusable_files_are_named(tmp_path: Path, rows: list[Any], message: str) -> None:
    path = write(tmp_path / "bad.jsonl", rows)
    with pytest.raises(DatasetError, match=message) as caught:
        read_votes(path)
    assert "bad.jsonl" in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="cannot read the samples"):
        read_votes(tmp_path / "none.jsonl")


def test_the_fingerprint_follows_the_content(tmp_path: Path) -> None:
    one, same, other = (tmp_path / name for name in "abc")
    one.write_text("x"), same.write_text("x"), other.write_text("y")
    assert fingerprint(one) == fingerprint(same) != fingerprint(other)
    assert len(fingerprint(one)) == len("sha256:") + 64
