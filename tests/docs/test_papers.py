"""The lines of the page on papers load rows in the shape in which each data set is published."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from scaffolding_ext import plain_yaml
from scaffolding_ext.evaluation.run.datasets import HUB_DATASETS, load_dataset
from scaffolding_ext.evaluation.run.scoring import score

PAGE = (Path(__file__).parents[2] / "docs" / "papers.md").read_text(encoding="utf-8")
LINES = dict(re.findall(r"^\| ([^|]+) \| `(dataset: [^`]+)`", PAGE, re.MULTILINE))
PUBLISHED: dict[str, tuple[dict[str, Any], str, str]] = {  # a row, a right answer to it, and a wrong one
    "MATH-500": ({"problem": "1/2 + 1/2?", "answer": "1", "subject": "Algebra", "unique_id": "a"}, "1", "2"),
    "GSM8K": ({"question": "2 eggs and 3?", "answer": "2 + 3 = 5\n#### 5"}, "5", "6"),
    "AIME24": ({"id": 60, "problem": "How many?", "answer": "204"}, "204", "205"),
    "AIME25": ({"id": "0", "problem": "How many?", "answer": "070"}, "70", "71"),
    "AMC23": ({"id": 0, "question": "How many?", "answer": "27"}, "27.0", "28"),
    "GPQA": (
        {"Question": "Which?", "Correct Answer": "x", "Incorrect Answer 1": "y", "Record ID": "r"},
        "A",  # by its seed and id
        "B",
    ),
    "MMLU-STEM": ({"question": "Which?", "subject": "physics", "choices": ["a", "b", "c", "d"], "answer": 2}, "C", "D"),
    "ARC-Challenge": (
        {"id": "M1", "question": "Which?", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "B"},
        "B",
        "A",
    ),
    "ASDiv": ({"id": "nluds-1", "question": "Seven apples and two. How many?", "result": "9", "grade": 1}, "9", "8"),
    "BBH": ({"input": "Which date?\nOptions:\n(A) one\n(B) two", "target": "(B)"}, "B", "(A)"),
}


def test_every_line_loads_its_rows(tmp_path: Path) -> None:
    assert LINES.keys() - PUBLISHED.keys() == {"Game of 24"}
    for name, (row, right, wrong) in PUBLISHED.items():
        given = plain_yaml.parse(LINES[name], name)["dataset"]
        given = given if isinstance(given, dict) else {"source": given}
        hub = str(given.pop("source")).removeprefix("hf:")
        given.pop("subset", None)
        if hub in HUB_DATASETS:
            given["format"] = HUB_DATASETS[hub].format
        (tmp_path / "rows.jsonl").write_text(json.dumps(row), encoding="utf-8")
        (sample,) = load_dataset(tmp_path / "rows.jsonl", **given)
        assert score(right, sample.target).correct, name
        assert not score(wrong, sample.target).correct, name
