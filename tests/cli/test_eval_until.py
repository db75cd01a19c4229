"""`eval --until` from end to end: it stops, says what is known, and goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from scaffolding_ext.cli.main import main
from scaffolding_ext.evaluation.run.records import read_records

STACK = {
    "controller": {"type": "NativeGenerationController"},
    "workers": {"generation": {"type": "ScriptedWorker", "args": {"respond": "\\boxed{7}"}}},
    "max_parallel_requests": 4,
    "seed": 3,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder has a stack that answers 7, and 300 questions of which four in five have that answer."""
    (tmp_path / "stack.yaml").write_text(json.dumps(STACK))
    rows = [{"question": f"How many are {i}?", "answer": 7 if i % 5 else 8} for i in range(300)]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(tmp_path)


def call(run: str, *arguments: str, exit_code: int = 0) -> Result:
    command = ("eval", "--config", "stack.yaml", "--dataset", "data.jsonl", "--output_path", run)
    result = CliRunner().invoke(main, [*command, *arguments])
    assert result.exit_code == exit_code, result.output
    return result


def until(run: str) -> dict[str, Any]:
    document = json.loads(Path(run, "summary.json").read_text())
    assert document["state"] == "finished"
    return document["until"]  # type: ignore[no-any-return]


def test_it_stops_when_the_accuracy_is_known_and_says_what_it_spared() -> None:
    output = call("run", "--until", "±7").stdout
    told, kept = until("run"), read_records("run/samples.jsonl")
    assert told["conclusion"] == "known"
    assert told["num_counted"] <= len(kept) == 300 - told["num_spared"] < told["num_counted"] + 4
    assert abs(told["estimate"]["value"] - 0.8) <= 0.07
    assert "accuracy to ±7: " in output
    assert f"on all 300; {told['num_spared']} spared" in output


def test_its_accuracy_is_over_the_questions_that_count_and_what_was_in_flight_stands_apart() -> None:
    output = call("run", "--until", "±7").stdout
    told, kept = until("run"), read_records("run/samples.jsonl")
    summary = json.loads(Path("run", "summary.json").read_text())["summary"]
    assert summary["accuracy"] == pytest.approx(told["estimate"]["value"])
    assert summary["num_samples"] == told["num_counted"]
    assert told["num_left_out"] == len(kept) - told["num_counted"] > 0
    assert f"{told['num_spared']} spared, {told['num_left_out']} not counted" in output
    assert told["left_out_tokens"] > 0


def test_resume_runs_nothing_more_for_the_same_goal_and_goes_on_for_a_closer_one() -> None:
    call("run", "--until", "±7")
    before = read_records("run/samples.jsonl")
    told = until("run")
    call("run", "--until", "±7", "--resume")
    assert read_records("run/samples.jsonl") == before
    assert until("run") == told
    call("run", "--until", "±4", "--resume")
    after = read_records("run/samples.jsonl")
    assert after[: len(before)] == before
    assert len(before) < len(after) == 300 - until("run")["num_spared"] < 300
    call("whole", "--until", "±4")
    assert {each.id for each in read_records("whole/samples.jsonl")} == {each.id for each in after}
    call("run", "--resume")
    assert len(read_records("run/samples.jsonl")) == 300


def test_a_run_that_was_killed_ends_where_the_whole_one_does() -> None:
    """Records of requests that were in flight are missing in the middle and at the end."""
    call("run", "--until", "±7")
    told, samples = until("run"), Path("run", "samples.jsonl")
    lines = samples.read_text().splitlines(keepends=True)
    samples.write_text("".join(line for number, line in enumerate(lines[:-20]) if number % 7))
    call("run", "--until", "±7", "--resume")
    assert {**until("run"), "num_spared": 0} == {**told, "num_spared": 0}


def test_it_compares_with_another_run_on_the_questions_that_both_have() -> None:
    call("plain", "--limit", "250")
    (Path("stack.yaml")).write_text(json.dumps(STACK).replace("7", "8"))
    output = call("run", "--until", "vs plain").stdout
    told = until("run")
    assert (told["conclusion"], told["num_questions"]) == ("worse", 250)
    assert told["num_spared"] > 200
    assert "worse than plain: " in output


def test_a_goal_is_checked_before_a_model_is_loaded() -> None:
    assert "evaluation.until: is '2'" in call("run", "--until", "2", exit_code=2).stderr
    both = call("run", "--until", "±2", "--total_tokens", "100", exit_code=2)
    assert "until takes no total_tokens" in both.stderr
    assert not Path("run").exists()
