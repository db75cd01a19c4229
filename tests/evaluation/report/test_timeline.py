"""A trace becomes steps on lanes, for the report's time line and for Chrome's trace viewer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.evaluation.compare.compared import PairedSample, kept_samples
from scaffolding_ext.evaluation.compare.finished_run import read_run
from scaffolding_ext.evaluation.report.timeline import TimelineStep, lanes_of, steps_of, write_chrome_trace
from scaffolding_ext.evaluation.run.records import RecordError, read_records


def event(name: str, seconds: float, *branch: int, **figures: Any) -> dict[str, Any]:
    return {"event": name, "branch": list(branch), "seconds": seconds, **figures}


TRACE = [
    event("allocate", 0.5, done=2, num_more=2),
    event("probe", 0.9, 10, answer="4"),
    event("probe", 0.7, 2, answer="3"),
    event("stop", 1.0, 2),
    event("vote", 1.2, answers=["3", "4"], winner=0),
]


def test_a_step_starts_where_its_lane_or_the_branch_above_it_was_last(write_run: Callable[..., Path]) -> None:
    folder = write_run("run", [("a", True, 150, {"trace": TRACE})])
    (record,) = read_records(folder / "samples.jsonl")
    steps = steps_of(record)
    assert steps == [
        TimelineStep("main", 0.0, 0.5, "allocate", {"done": 2, "num_more": 2}),
        TimelineStep("2", 0.5, 0.7, "probe", {"answer": "3"}),
        TimelineStep("10", 0.5, 0.9, "probe", {"answer": "4"}),
        TimelineStep("2", 0.7, 1.0, "stop", {}),
        TimelineStep("main", 0.5, 1.2, "vote", {"answers": ["3", "4"], "winner": 0}),
        TimelineStep("main", 1.2, 1.5, "done", {"answer": "1", "exit_reason": "end", "correct": True}),
    ]
    assert lanes_of(steps) == ["main", "2", "10"]


def test_a_failed_request_ends_with_its_error(write_run: Callable[..., Path]) -> None:
    error = RecordError("TaskError", "the worker died")._asdict()
    (record,) = read_records(write_run("run", [("a", False, 10, {"error": error})]) / "samples.jsonl")
    (step,) = steps_of(record)
    assert (step.event, step.figures) == ("failed", {"error": "TaskError", "message": "the worker died"})


def test_chrome_gets_a_process_a_sample_and_run_and_a_thread_a_branch(
    write_run: Callable[..., Path], tmp_path: Path
) -> None:
    folder = write_run("run", [("a", True, 150, {"trace": TRACE, "epoch": 3})])
    (record,) = read_records(folder / "samples.jsonl")
    sample = PairedSample(read_run(folder).key(0), [record, record])
    write_chrome_trace(tmp_path / "trace.json", ["one", "two"], [sample])
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {found["pid"]: found["args"]["name"] for found in events if found["name"] == "process_name"}
    assert names == {1: "a/3 one", 2: "a/3 two"}
    threads = [found["args"]["name"] for found in events if found["name"] == "thread_name" and found["pid"] == 2]
    assert threads == ["main", "2", "10"]
    stop = next(found for found in events if found["name"] == "stop")
    assert [stop[key] for key in ("ph", "pid", "tid", "ts", "dur")] == ["X", 1, 1, 700_000, pytest.approx(300_000)]


def test_samples_on_which_runs_disagree_are_kept_first(write_run: Callable[..., Path]) -> None:
    runs = [
        read_run(write_run("one", [(f"q{n}", True, n) for n in range(9)])),
        read_run(write_run("two", [(f"q{n}", n not in (5, 7), n) for n in reversed(range(9))])),
    ]
    kept = kept_samples(runs, 4)
    assert [sample.key.id for sample in kept] == ["q0", "q1", "q5", "q7"]
    assert [[record.correct for record in sample.records] for sample in kept[-2:]] == [[True, False]] * 2
    assert kept_samples(runs, 0) == []
