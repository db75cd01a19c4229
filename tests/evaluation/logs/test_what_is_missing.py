"""Fields of logs that are missing, not finite, or say two things: read as they say, or refused with their place."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.logs.read import read_recording

LM_EVAL = "samples_task_2026-01-01T00-00-00.000000.jsonl"


def lm_eval(number: int, target: Any, responses: list[Any], **more: Any) -> dict[str, Any]:
    return {"doc_id": number, "doc": {}, "target": target, "resps": [responses], "filter": "none", **more}


def classes_of(path: Path, *lines: Any) -> list[list[int]]:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return [question.classes.tolist() for question in read_recording([path]).questions]


@pytest.mark.parametrize("missing", ["NaN", "null", "  NaN"])
def test_a_nan_is_a_missing_answer(tmp_path: Path, missing: str) -> None:
    line = '{"id": "a", "target": "4", "samples": [{"answer": "4"}, {"answer": %s}, {"answer": %s}]}'
    assert classes_of(tmp_path / "log.jsonl", line % (missing, missing)) == [[0, -1, -1]]


@pytest.mark.parametrize(
    "field", ['"seconds": Infinity', '"logprob": -Infinity', '"output_tokens": 1e999', '"reward": -1e400']
)
def test_numbers_that_are_not_finite_are_refused_with_their_line(tmp_path: Path, field: str) -> None:
    line = '{"id": "a", "target": "4", "samples": [{"answer": "4", %s}]}'
    with pytest.raises(DatasetError, match=r"line 1: .* finite number"):
        classes_of(tmp_path / "log.jsonl", line % field)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("log.jsonl", [{"id": "a", "target": target, "samples": [{"answer": "4"}]} for target in "45"]),
        ("log.jsonl", [{"id": "a", "target": target, "answer": "4"} for target in "45"]),
        ("log.jsonl", [{"id": "a", "target": target, "text": "\\boxed{4}"} for target in "45"]),
        ("log.jsonl", [{"id": "a", "target": "4", "answer": "4"}, {"id": "a", "answer": "5"}]),
    ],
)
def test_an_id_with_two_targets_is_refused(tmp_path: Path, name: str, lines: list[Any]) -> None:
    with pytest.raises(DatasetError, match=r"the question 'a' has the targets '4' and ('5'|None)"):
        classes_of(tmp_path / name, *lines)


def test_equal_ids_of_two_runs_may_have_two_targets(tmp_path: Path) -> None:
    lines = [{"id": "a", "target": target, "run": target, "answer": "4"} for target in "45"]
    assert classes_of(tmp_path / "log.jsonl", *lines) == [[0], [0]]


@pytest.mark.parametrize(
    ("name", "line", "classes"),
    [
        (LM_EVAL, lm_eval(0, "4", ["It is \\boxed{4}", None, "\\boxed{4}"]), [0, -1, 0]),
        (LM_EVAL, lm_eval(0, "4", [None, None]), [-1, -1]),
        (LM_EVAL, lm_eval(0, "4", [None], filtered_resps=[None]), [-1]),
        ("log.jsonl", {"id": "a", "target": "4", "samples": ["4", None, "4"]}, [0, -1, 0]),
        ("log.jsonl", {"id": "a", "target": "4", "samples": [None, 4, 4.0]}, [-1, 0, 0]),
    ],
)
def test_a_response_of_null_is_a_sample_without_an_answer(
    tmp_path: Path, name: str, line: Any, classes: list[int]
) -> None:
    assert classes_of(tmp_path / name, line) == [classes]


def test_several_right_answers_are_refused_if_we_would_grade_by_one(tmp_path: Path) -> None:
    two, several = ["Paris", "City of Paris"], ["It is \\boxed{Paris}", "It is \\boxed{Rome}"]
    with pytest.raises(DatasetError, match="line 2: has 2 targets and several responses"):
        classes_of(tmp_path / LM_EVAL, lm_eval(0, ["Paris"], several), lm_eval(1, two, several))
    graded = {"metrics": ["exact_match"], "exact_match": 1.0, "filtered_resps": ["City of Paris"]}
    path = tmp_path / LM_EVAL
    path.write_text(json.dumps(lm_eval(0, two, several[:1], **graded)) + "\n")
    assert read_recording([path]).questions[0].correct.tolist() == [True]  # by the harness


def test_an_infinite_perplexity_is_one(tmp_path: Path) -> None:
    line = (
        '{"id": "a", "target": "4", "samples": [{"answer": "4", "ppl": [1.5, Infinity]}, {"answer": "4", "ppl": [2]}]}'
    )
    (tmp_path / "log.jsonl").write_text(line + "\n")
    logprobs = read_recording([tmp_path / "log.jsonl"]).questions[0].logprobs
    assert logprobs is not None
    assert logprobs.tolist() == [-math.inf, pytest.approx(-math.log(2))]
