"""A run that keeps the samples of its votes: records that `tune` reads as a recording, and a lane for each sample."""

from __future__ import annotations

import importlib.resources
import json
from pathlib import Path
from typing import Any

import jsonschema

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.vote.allocation.agreement import EarlyStoppingWindow
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.evaluation.logs.folder import read_run
from scaffolding_ext.evaluation.report.timeline import lanes_of, steps_of
from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.evaluation.run.records import Record, record_writer
from scaffolding_ext.evaluation.run.runner import evaluate
from scaffolding_ext.evaluation.run.summary import summarize
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import Controller
from scaffolding_ext.testing import ScriptedWorker

SAMPLES = [Example("a", "What is 6 times 7?", "42"), Example("b", "What is 6 times 8?", "48")]


def records_of(controller: Controller, keep_samples: bool, num_answers: int = 2) -> list[Record]:
    worker = ScriptedWorker(lambda task: f"It is \\boxed{{{42 + task.seed % num_answers}}}.")
    with ScaffoldingLlm(controller, {"generation": worker}, keep_samples=keep_samples, seed=1) as llm:
        return evaluate(llm, SAMPLES)


def vote(**options: Any) -> MajorityVoteController:
    return MajorityVoteController(
        NativeGenerationController({"temperature": 0.7}), 4, **({"allocation": None} | options)
    )


def test_the_samples_of_a_vote_are_kept_and_marked(tmp_path: Path) -> None:
    kept, plain = records_of(vote(), keep_samples=True), records_of(vote(), keep_samples=False)
    assert [record.samples for record in plain] == [None, None]
    schema = importlib.resources.files("scaffolding_ext.evaluation.run").joinpath("record.schema.json").read_text()
    for record, same in zip(kept, plain, strict=True):
        assert (record.answer, record.output, record.ledger) == (same.answer, same.output, same.ledger)
        assert record.samples is not None
        (event,) = [event for event in record.trace if event["event"] == "vote"]
        assert [sample["answer"] for sample in record.samples] == event["answers"]
        assert [sample["output_tokens"] for sample in record.samples] == event["num_decoded"]
        assert all(sample["text"] == f"It is \\boxed{{{sample['answer']}}}." for sample in record.samples)
        assert all(sample["correct"] is (sample["answer"] == record.target) for sample in record.samples)
        assert all(0 <= sample["seconds"] <= record.seconds["total"] for sample in record.samples)
        jsonschema.validate(record.to_json(), json.loads(schema))
    with record_writer(tmp_path / "samples.jsonl") as write:
        for record in kept:
            write(record)
    questions = read_run(tmp_path / "samples.jsonl", "sha256:0").questions
    assert [len(question.samples) for question in questions] == [4, 4]
    assert questions[0].samples[1].answer == kept[0].samples[1]["answer"]  # type: ignore[index]


def test_each_kept_sample_has_a_lane_that_begins_with_its_round() -> None:
    never_agrees = records_of(vote(allocation=EarlyStoppingWindow(window=2)), keep_samples=True, num_answers=2**60)
    record = never_agrees[0]
    assert record.samples is not None
    steps = steps_of(record)
    assert lanes_of(steps) == ["main", "0", "1", "2", "3"]
    told = {step.lane: step for step in steps if step.event == "sample"}
    assert [told[str(index)].figures for index in range(4)] == record.samples
    (first_round,) = [e["seconds"] for e in record.trace if e["event"] == "allocate" and e["done"] == 2]
    assert [told[lane].start for lane in "0123"] == [0.0, 0.0, first_round, first_round]
    assert all(step.start <= step.end for step in steps)


def test_undetermined_answers_are_warned_about_once_with_three_of_them() -> None:
    samples = [Example(f"q{n}", f"How far? {n}", str(n)) for n in range(5)]
    worker = ScriptedWorker(lambda task: f"The answer is {task.input_str.split()[-1]} km.")
    with ScaffoldingLlm(NativeGenerationController(), {"generation": worker}) as llm:
        undetermined, implied = (evaluate(llm, samples, units_implied=units) for units in (False, True))
    (warning,) = summarize(undetermined).warnings
    assert warning.startswith("5 of 5 answers could not be compared with the right one, and count as wrong: ")
    for number in range(3):
        assert f"'{number} km' instead of '{number}' (q{number})" in warning
    assert "q3" not in warning
    assert "evaluation.units_implied: true" in warning
    assert summarize(implied).warnings == []
