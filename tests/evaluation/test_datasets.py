"""Datasets are checked row by row before anything is generated, and the embedded problems are drawn from a seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.datasets import EMBEDDED, Limit, Sample, load_dataset, parse_limit
from scaffolding_ext.tinylm.grammar import KINDS, split_of


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


# ---- JSONL


@pytest.mark.parametrize("prompt_field", ["problem", "question", "prompt"])
@pytest.mark.parametrize("target_field", ["answer", "target"])
def test_the_field_names_of_common_datasets_are_known(tmp_path: Path, prompt_field: str, target_field: str) -> None:
    path = write(tmp_path / "a.jsonl", {prompt_field: "1+1?", target_field: "2", "unique": True})
    assert load_dataset(path) == [Sample("1", "1+1?", "2")]


@pytest.mark.parametrize(
    ("value", "text"),
    [(27, "27"), (27.0, "27"), (-3, "-3"), (0.5, "0.5"), (1e22, "10000000000000000000000"), (" 1/2 ", "1/2")],
)
def test_numbers_become_the_text_that_one_would_write(tmp_path: Path, value: Any, text: str) -> None:
    assert load_dataset(write(tmp_path / "a.jsonl", {"question": "?", "answer": value}))[0].target == text


def test_ids_and_kinds_are_optional(tmp_path: Path) -> None:
    rows = ({"id": 7, "question": "a", "answer": 1, "kind": "sum"}, "", {"question": "b", "answer": 2})
    samples = load_dataset(write(tmp_path / "a.jsonl", *rows))
    assert samples == [Sample("7", "a", "1", "sum"), Sample("3", "b", "2", None)]  # by line, the empty one counted


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "line 2: no valid JSON"),
        ([1], "line 2: a list"),
        ({"answer": 1}, "line 2: none of the fields 'problem', 'question', 'prompt'; it has: answer"),
        ({"question": "a"}, "line 2: none of the fields 'answer', 'target'"),
        ({"question": 3, "answer": 1}, "line 2, field 'question': 3"),
        ({"question": " ", "answer": 1}, "line 2, field 'question'"),
        ({"question": "a", "answer": None}, "line 2, field 'answer': None"),
        ({"question": "a", "answer": True}, "line 2, field 'answer': True"),
        ({"question": "a", "answer": ""}, "line 2, field 'answer'"),
        ('{"question": "a", "answer": NaN}', "line 2, field 'answer': nan"),
        ({"question": "a", "answer": 1, "id": []}, "line 2, field 'id'"),
        ({"question": "a", "answer": 1, "id": "1"}, "line 2, field 'id': '1' names an earlier row"),
    ],
)
def test_a_bad_row_names_file_line_and_field(tmp_path: Path, row: Any, message: str) -> None:
    path = write(tmp_path / "bad.jsonl", {"question": "a", "answer": 1}, row)
    with pytest.raises(DatasetError) as caught:
        load_dataset(path, limit="1")  # rows outside the limit are checked, too
    assert str(caught.value).startswith(f"{path}, {message}")


def test_a_file_without_rows_or_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no rows"):
        load_dataset(write(tmp_path / "empty.jsonl", ""))
    with pytest.raises(DatasetError, match="cannot read"):
        load_dataset(tmp_path / "none.jsonl")


# ---- limits


@pytest.mark.parametrize(
    ("limit", "ids"), [("2", ["1", "2"]), ("2-3", ["2", "3"]), ("4-4", ["4"]), ("9", ["1", "2", "3", "4", "5"])]
)
def test_a_limit_takes_a_range_counted_from_one(tmp_path: Path, limit: str, ids: list[str]) -> None:
    path = write(tmp_path / "a.jsonl", *({"question": str(i), "answer": i} for i in range(5)))
    assert [sample.id for sample in load_dataset(path, limit=limit)] == ids


def test_a_limit_that_leaves_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="has 1 samples"):
        load_dataset(write(tmp_path / "a.jsonl", {"question": "a", "answer": 1}), limit="2-3")


@pytest.mark.parametrize("limit", ["", "0", "-3", "3-2", "0-2", "a", "1-2-3", "1.5"])
def test_a_limit_of_another_form_is_refused(limit: str) -> None:
    with pytest.raises(DatasetError, match="write N for the first N"):
        parse_limit(limit)


@given(st.integers(1, 10**6), st.integers(0, 10**6))
def test_limits_are_read_as_written(first: int, more: int) -> None:
    assert parse_limit(f"{first}-{first + more}") == Limit(first, first + more)


# ---- embedded problems


def test_embedded_problems_are_held_out_distinct_and_seeded() -> None:
    samples = load_dataset(EMBEDDED, num_samples=200, seed=1)
    assert len({sample.prompt for sample in samples}) == len({sample.id for sample in samples}) == 200
    assert {split_of(sample.prompt) for sample in samples} == {"held_out"}
    assert samples == load_dataset(EMBEDDED, num_samples=200, seed=1)
    assert samples[:50] == load_dataset(EMBEDDED, num_samples=50, seed=1)
    assert samples[:50] != load_dataset(EMBEDDED, num_samples=50, seed=2)


@pytest.mark.parametrize("kind", KINDS)
def test_embedded_problems_of_one_kind(kind: str) -> None:
    assert {sample.kind for sample in load_dataset(EMBEDDED, num_samples=5, kind=kind)} == {kind}


def test_a_hundred_embedded_problems_unless_told_otherwise() -> None:
    assert len(load_dataset(EMBEDDED)) == 100


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (EMBEDDED, {"kind": "prime"}, "known: sum, walk"),
        ("tinylm:train", {}, "known: tinylm:held_out"),
        ("a.jsonl", {"num_samples": 3}, "choose its rows with limit"),
    ],
)
def test_what_a_source_does_not_have_is_refused(source: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        load_dataset(source, **options)
