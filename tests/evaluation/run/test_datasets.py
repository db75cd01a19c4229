"""Datasets are checked row by row before anything is generated, and the embedded problems are drawn from a seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.errors import ConfigError, DatasetError
from scaffolding_ext.evaluation.run.datasets import EMBEDDED, Example, load_dataset, parse_limit
from scaffolding_ext.tinylm.grammar import split_of


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def read(path: Path, **options: Any) -> list[Example]:
    """The samples of a file, without the names of fields that are not read."""
    return [sample._replace(unread=()) for sample in load_dataset(path, **options)]


# ---- JSONL


@pytest.mark.parametrize("prompt_field", ["problem", "question", "prompt"])
@pytest.mark.parametrize("target_field", ["answer", "target"])
def test_the_field_names_of_common_datasets_are_known(tmp_path: Path, prompt_field: str, target_field: str) -> None:
    path = write(tmp_path / "a.jsonl", {prompt_field: "1+1?", target_field: "2", "unique": True})
    assert read(path) == [Example("1", "1+1?", "2")]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (27, "27"),
        (27.0, "27"),
        (-3, "-3"),
        (0.5, "0.5"),
        (1e22, "10000000000000000000000"),
        (6.02e23, "602000000000000000000000"),
        (-4.0, "-4"),
        (" 1/2 ", "1/2"),
    ],
)
def test_numbers_become_the_text_that_one_would_write(tmp_path: Path, value: Any, text: str) -> None:
    assert load_dataset(write(tmp_path / "a.jsonl", {"question": "?", "answer": value}))[0].target == text


def test_ids_and_kinds_are_optional(tmp_path: Path) -> None:
    rows = ({"id": 7, "question": "a", "answer": 1, "kind": "sum"}, "", {"question": "b", "answer": 2})
    samples = load_dataset(write(tmp_path / "a.jsonl", *rows))
    assert samples == [Example("7", "a", "1", "sum"), Example("3", "b", "2", None)]  # by line, the empty one counted


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "line 2: invalid JSON"),
        ([1], "line 2: a list"),
        ({"answer": 1}, "line 2: none of the fields 'problem', 'question', 'prompt'; it has: answer"),
        ({"question": "a"}, "line 2: none of the fields 'answer', 'target'"),
        ({"question": 3, "answer": 1}, "line 2, field 'question': 3"),
        ({"question": " ", "answer": 1}, "line 2, field 'question'"),
        (
            {"question": "a", "answer": None},
            "line 2, field 'answer': None; it must be text that is not empty, or a finite number",
        ),
        ({"question": "a", "answer": True}, "line 2, field 'answer': True"),
        ({"question": "a", "answer": ""}, "line 2, field 'answer'"),
        ('{"question": "a", "answer": NaN}', "line 2, field 'answer': None"),
        ({"question": "a", "answer": 1, "id": []}, "line 2, field 'id'"),
        ({"question": "a", "answer": 1, "id": "1"}, "line 2, field 'id': '1' is the id of an earlier row"),
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


def problem_of(path: Path, **options: Any) -> str:
    with pytest.raises(DatasetError) as caught:
        load_dataset(path, **options)
    return str(caught.value).removeprefix(str(path))


GOOD = {"question": "a", "answer": 1}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"question": "a", "prompt": "b", "answer": 1}],
            "has both 'question' and 'prompt'; name the right one in dataset.columns",
        ),
        ([{"question": "a", "answer": 1, "target": 2}], "has both 'answer' and 'target'"),
        (['{"question": "a", "answer": 1, "answer": 2}'], "the key 'answer' appears twice; keep one of the two"),
        ([r'{"question": "half \ud83d of it", "answer": 1}'], "half of a surrogate pair is not text"),
        ([r'{"question": "a", "answer": "\udc00"}'], "field 'answer': '\\udc00'; half of a surrogate pair"),
        (["[" * 100_000], "invalid JSON: it is nested too deeply"),
        (['{"question": "a", "answer": ' + "9" * 5000 + "}"], "Exceeds the limit"),
        ([[GOOD, GOOD]], "a list; the file must be JSONL"),
        (["question,answer", "a,1"], "a row of JSONL is one JSON object"),
        (
            [GOOD, GOOD, {"id": "2", **GOOD}],
            "line 3, field 'id': '2' is the id of an earlier row (line 2); ids must be unique, and a row without",
        ),
        (
            [{"id": 2, **GOOD}, GOOD],
            "line 2, field 'id': '2' is the id of an earlier row (line 1); ids must be unique, and a row without",
        ),
    ],
)
def test_a_row_that_could_mean_two_things_or_nothing_is_refused(tmp_path: Path, rows: list[Any], message: str) -> None:
    assert message in problem_of(write(tmp_path / "bad.jsonl", *rows))


def test_the_same_question_under_two_names_means_one_thing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"question": "1+1?", "prompt": "1+1?", "answer": 2})
    assert read(path) == [Example("1", "1+1?", "2")]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b'{"question": "a", "answer": 1}\n{"question": "caf\xe9", "answer": 1}\n',
            ", line 2: the byte 0xe9 is not UTF-8",
        ),
        ('{"question": "a", "answer": 1}\n'.encode("utf-16"), "it is UTF-16; save it as UTF-8"),
    ],
)
def test_another_encoding_is_told_with_its_line(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    assert message in problem_of(path)


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    assert load_dataset(path) == [Example("1", "a", "1")]


def test_all_bad_rows_are_told_at_once_twenty_at_most(tmp_path: Path) -> None:
    rows = ["{", {"question": 3, "answer": 1}, GOOD, {"question": "a"}]
    told = problem_of(write(tmp_path / "a.jsonl", *rows))
    assert [part.split(":")[0] for part in told.removeprefix(", ").split("; line")] == [
        "line 1",
        " 2, field 'question'",
        " 4",
    ]
    many = problem_of(write(tmp_path / "b.jsonl", *["{"] * 50))
    assert many.startswith(", lines 1, 2, 3, ")
    assert "19, 20: invalid JSON" in many
    assert many.count("invalid JSON") == 1
    assert many.endswith("; stopped there")


def test_a_folder_is_told_how_to_name_it(tmp_path: Path) -> None:
    assert (
        problem_of(tmp_path)
        == f" is a folder: name a file of it, or write hf:{tmp_path} for a folder of Hugging Face's"
    )


def test_csv_is_read_by_its_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,question,answer,level\nx,"1,000 + 1?",1001,easy\n,"two\nlines?",0.00001,\n')
    assert load_dataset(path) == [
        Example("x", "1,000 + 1?", "1001", unread=("level",)),
        Example("3", "two\nlines?", "0.00001", unread=("level",)),
    ]
    path.write_text("question,answer\n1+1?,2,3\n")
    assert "line 2: has more cells than the header's 2" in problem_of(path)


def test_decimals_stay_as_written(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", *(f'{{"question": "a", "answer": {text}}}' for text in ("0.00001", "1e-7", "2.5"))
    )
    assert [sample.target for sample in load_dataset(path)] == ["0.00001", "0.0000001", "2.5"]


def test_a_passage_comes_before_its_question(tmp_path: Path) -> None:
    row = {"passage": "A cat sat.", "question": "Who sat?", "answer": "a cat", "source": "web"}
    path = write(tmp_path / "a.jsonl", row)
    assert load_dataset(path) == [Example("1", "A cat sat.\n\nWho sat?", "a cat", unread=("source",))]
    assert load_dataset(path, columns={"context": "source"})[0].prompt == "web\n\nWho sat?"
    assert "no field 'text'" in problem_of(path, columns={"context": "text"})
    row["passage"] = {"title": ["cats"]}
    assert "field 'passage': {'title': ['cats']}; it must be text" in problem_of(write(tmp_path / "b.jsonl", row))


def test_bad_rows_can_be_left_out_with_a_warning(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", "{", GOOD, {"id": "2", **GOOD}, {"question": "b", "answer": 2})
    with pytest.warns(UserWarning, match=r"2 of 4 rows are skipped: line 1: invalid JSON.*; line 3, field 'id'"):
        samples = load_dataset(path, skip_bad_rows=True)
    assert samples == [Example("2", "a", "1"), Example("4", "b", "2")]
    with pytest.raises(DatasetError, match="no rows that can be used: line 1"):
        load_dataset(write(tmp_path / "b.jsonl", "{"), skip_bad_rows=True)


def test_columns_say_what_a_file_calls_its_fields(tmp_path: Path) -> None:
    row = {"prompt": "system text", "text": "1+1?", "solution": 2, "answer": "as shown", "uid": 7, "level": "easy"}
    columns = {"prompt": "text", "target": "solution", "id": "uid", "kind": "level"}
    path = write(tmp_path / "a.jsonl", row)
    assert load_dataset(path, columns=columns) == [Example("7", "1+1?", "2", "easy", unread=("prompt", "answer"))]
    assert read(path) == [Example("1", "system text", "as shown")]
    assert "no field 'txt'; it has: prompt, text" in problem_of(path, columns={"prompt": "txt"})
    assert "columns has promt; it may have prompt, context, target, id, kind" in problem_of(
        path, columns={"promt": "text"}
    )


# ---- benchmarks, as their authors write them

MATH500 = {"problem": "1+1?", "solution": "so $2$", "answer": "2", "subject": "Algebra", "level": 1, "unique_id": "t/1"}
AIME = {"ID": "2024-I-1", "Problem": "1+1?", "Solution": "so", "Answer": "025"}
AMC = {"id": 3, "problem": "1+1?", "answer": 27.0, "url": "x", "question": "1+1?"}
GSM8K = {"question": "1+1?", "answer": "1+1=<<1+1=2>>2 clips.\n#### 1,234"}


@pytest.mark.parametrize(
    ("format", "row", "sample"),
    [
        ("math500", MATH500, Example("t/1", "1+1?", "2", "Algebra")),
        ("aime", AIME, Example("2024-I-1", "1+1?", "25")),
        ("aime", {"id": 60, "problem": "1+1?", "answer": "204", "year": "2024"}, Example("60", "1+1?", "204")),
        ("amc", AMC, Example("3", "1+1?", "27")),
        ("gsm8k", GSM8K, Example("1", "1+1?", "1234", answers_anyhow=True)),
    ],
)
def test_benchmarks_are_read_as_they_are_written(
    tmp_path: Path, format: str, row: dict[str, Any], sample: Example
) -> None:
    assert read(write(tmp_path / "a.jsonl", row), format=format) == [sample]


@pytest.mark.parametrize(
    ("format", "row", "message"),
    [
        ("aime", AIME | {"Answer": "1000"}, "line 1, field 'Answer': '1000'; it must be a whole number from 0 to 999"),
        ("aime", AIME | {"Answer": "a"}, "line 1, field 'Answer': 'a'; it must be"),
        ("amc", AMC | {"answer": "B"}, "line 1, field 'answer': 'B'; it must be a number"),
        (
            "gsm8k",
            GSM8K | {"answer": "so 72"},
            "line 1, field 'answer': 'so 72'; the answer must follow ####",
        ),
        ("math500", {"question": "1+1?", "answer": 2}, "line 1: no field 'problem'; it has: question, answer"),
        ("aime2024", AIME, "dataset.format"),
    ],
)
def test_a_row_that_is_not_of_its_benchmark_is_refused(
    tmp_path: Path, format: str, row: dict[str, Any], message: str
) -> None:
    with pytest.raises((DatasetError, ConfigError)) as caught:
        load_dataset(write(tmp_path / "a.jsonl", row), format=format)
    assert message in str(caught.value)


# ---- limits


@pytest.mark.parametrize(
    ("limit", "ids"), [("2", ["1", "2"]), ("2-3", ["2", "3"]), ("4-4", ["4"]), ("9", ["1", "2", "3", "4", "5"])]
)
def test_a_limit_takes_a_range_counted_from_one(tmp_path: Path, limit: str, ids: list[str]) -> None:
    path = write(tmp_path / "a.jsonl", *({"question": str(i), "answer": i} for i in range(5)))
    assert [sample.id for sample in load_dataset(path, limit=limit)] == ids


@pytest.mark.parametrize("limit", ["", "0", "-3", "3-2", "0-2", "a", "1-2-3", "1.5", "9" * 5000])
def test_a_limit_of_another_form_is_refused(limit: str) -> None:
    with pytest.raises(DatasetError, match="write N for the first N"):
        parse_limit(limit)


# ---- embedded problems


def test_embedded_problems_are_held_out_distinct_and_seeded() -> None:
    samples = load_dataset(EMBEDDED, num_samples=200, seed=1)
    assert len({sample.prompt for sample in samples}) == len({sample.id for sample in samples}) == 200
    assert {split_of(sample.prompt) for sample in samples} == {"held_out"}
    assert samples == load_dataset(EMBEDDED, num_samples=200, seed=1)
    assert samples[:50] == load_dataset(EMBEDDED, num_samples=50, seed=1)
    assert samples[:50] != load_dataset(EMBEDDED, num_samples=50, seed=2)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (EMBEDDED, {"kind": "prime"}, "known: sum, walk"),
        (EMBEDDED, {"num_samples": 10**9}, "num_samples is 1000000000; tinylm:held_out gives 1 to 100,000"),
        ("tinylm:train", {}, "known: tinylm:held_out"),
        ("a.jsonl", {"num_samples": 3}, "takes no num_samples; it takes columns, format, skip_bad_rows, and limit"),
        ("hf:a/b", {"args": {"x": 1}}, "takes no args; it takes columns, format, skip_bad_rows, subset, split, and"),
        (EMBEDDED, {"split": "test", "format": "aime"}, "takes no split and no format"),
    ],
)
def test_what_a_source_does_not_have_is_refused(source: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        load_dataset(source, **options)
