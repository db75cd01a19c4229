"""`tune` gives no advice on a log that it cannot have read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from scaffolding_ext.cli.main import main
from scaffolding_ext.evaluation.logs.read import read_recording

Question = dict[str, Any]


def question(number: int, target: str | None, answers: list[str | None], **fields: Any) -> Question:
    samples = [{"answer": answer, **fields} for answer in answers]
    return {"id": f"q{number}", "samples": samples} | ({} if target is None else {"target": target})


def written(path: Path, of: Callable[[int], Question], count: int = 10) -> Path:
    path.write_text("".join(json.dumps(of(number)) + "\n" for number in range(count)))
    return path


UNREAD: dict[str, tuple[Callable[[int], Question], str]] = {
    "texts for answers": (
        lambda number: question(number, "7", [f"Attempt {each}: it is 7" for each in range(4)], correct=True),
        "no two samples of a question have the same answer",
    ),
    "seeds for answers": (
        lambda number: question(number, None, [str(10 * number + each) for each in range(3)]),
        "no two samples of a question have the same answer",
    ),
    "numbers beside the point": (
        lambda number: question(number, "7", ["1", "2", "3", "5"]),
        "no two samples of a question have the same answer",
    ),
    "temperature 0": (
        lambda number: question(number, "7", [str(number)] * 4),
        "all samples of each question have the same answer",
    ),
    "labels for answers": (
        lambda number: question(number, "7", ["correct"] * 4, correct=True),
        "all samples of each question have the same answer",
    ),
    "no answers": (lambda number: question(number, "7", [None] * 4), "40 of 40 samples have no answer"),
    "cut off": (
        lambda number: question(number, "7", ["7", None, None, "8" if number else None]),
        "21 of 40 samples have no answer, and no two answers to a question are the same: if the samples were cut off, "
        "record them with more max_tokens",
    ),
    "another field as target": (lambda number: question(number, "q" * 9, ["1", "2", "1", "1"]), "no sample is right"),
    "labels that are never true": (
        lambda number: question(number, "1", ["1", "2", "1", "1"], correct=False),
        "no sample is right",
    ),
    "targets of another split": (lambda number: question(number, "99", ["1", "2", "2"]), "no sample is right"),
    "letters for options": (
        lambda number: question(number, "ABCD"[number % 4], ["Paris", "Rome", "Rome"], correct=True),
        "all targets are letters, but no answer is one",
    ),
    "letters for numbers": (
        lambda number: question(number, "B", ["12", "14", "12"], correct=number > 2),
        "all targets are letters, but no answer is one",
    ),
    "letters for indices": (
        lambda number: question(number, "ABC"[number % 3], ["0", "1", "1"]),
        "all targets are letters, but no answer is one",
    ),
}


@pytest.mark.parametrize("kind", UNREAD)
def test_a_log_that_cannot_have_been_read_gets_no_advice_and_no_stack(tmp_path: Path, kind: str) -> None:
    of, told = UNREAD[kind]
    log, stack = written(tmp_path / "log.jsonl", of), tmp_path / "stack.yaml"
    for arguments in (["tune", str(log), "--output_path", str(stack)], ["replay", str(log)]):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code != 0, result.output
    refused = CliRunner().invoke(main, ["tune", str(log), "--output_path", str(stack)])
    output = " ".join(refused.output.split())
    assert told in output
    assert "check" in output
    assert "Use " not in output
    assert not stack.exists()


@pytest.mark.parametrize(
    "of",
    [
        lambda number: question(number, "7", ["7", "7", "8", "9"]),
        lambda number: question(number, "B", ["B", "C", "B", "Paris"]),
        lambda number: question(number, "7", ["7"] * 3 if number else ["7", "7", "8"]),
        lambda number: question(number, None, ["7", "8", "7"]),
        lambda number: question(number, "7" if number else "8", ["8", "9", "8"]),
    ],
)
def test_a_log_that_can_have_been_read_raises_no_doubt(tmp_path: Path, of: Callable[[int], Question]) -> None:
    assert read_recording([written(tmp_path / "log.jsonl", of)]).doubt is None


def test_a_log_of_a_few_samples_raises_no_doubt(tmp_path: Path) -> None:
    log = written(tmp_path / "log.jsonl", lambda number: question(number, "7", ["1", "2"]), count=3)
    assert read_recording([log]).doubt is None
