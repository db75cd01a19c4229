"""The end of a run whose result is known: goals, the order in which questions count, and conclusions."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from scaffolding_ext.documents import json_text
from scaffolding_ext.errors import ConfigError, DatasetError
from scaffolding_ext.evaluation.run.formats import Example
from scaffolding_ext.evaluation.run.records import Record, prompt_hash
from scaffolding_ext.evaluation.run.until import UntilGoal, UntilKnown, answered_by, stop_of
from scaffolding_ext.request.ledger import Ledger

SAMPLES = [Example(str(number), f"How many are {number}?", "7") for number in range(40)]
RECORD = Record("0", 0, "", "7", "7", "7", True, "equal", None, Ledger().to_json(), {"total": 1.0}, 0, [], None)


def records(right: int) -> list[Record]:
    return [
        replace(RECORD, id=each.id, prompt_hash=prompt_hash(each.prompt), correct=number < right)
        for number, each in enumerate(SAMPLES)
    ]


def written(path: Path, kept: list[Record]) -> str:
    path.write_text("".join(json_text(each.to_json()) + "\n" for each in kept))
    return str(path)


def test_goals() -> None:
    cases = [
        ("±2", (0.02, None)),
        ("+-2.5", (0.025, None)),
        ("+/- 3", (0.03, None)),
        ("vs runs/plain", (0.02, "runs/plain")),
        ("vs my runs/plain ±1", (0.01, "my runs/plain")),
    ]
    assert [(text, goal, found) for text, goal in cases if (found := UntilGoal.of(text)) != pytest.approx(goal)] == []


def test_other_goals_are_refused_with_the_forms() -> None:
    for text in ["", "2", "±", "±0", "±100", "vs", "vs ", "runs/plain"]:
        with pytest.raises(ConfigError, match=r"evaluation\.until: is .*'±2' or '\+-2'.*'vs runs/plain ±1'"):
            UntilGoal.of(text)


def test_the_order_in_which_questions_end_decides_nothing() -> None:
    ids = [str(number) for number in range(300)]
    right = {each: float(number % 5 > 0) for number, each in enumerate(ids)}
    order = random.Random(3).sample(ids, len(ids))
    in_order, mixed = (UntilKnown(UntilGoal.of("±6"), order) for _ in range(2))
    for each in order:
        in_order.add(each, right[each])
    rng = random.Random(4)
    for start in range(0, len(order), 20):  # twenty at a time, which end in any order
        for each in rng.sample(order[start : start + 20], 20):
            mixed.add(each, right[each])
    assert in_order.is_settled
    assert {**in_order.figures(), "num_spared": 0} == {**mixed.figures(), "num_spared": 0}
    assert 0 < in_order.num_counted < 300


def test_a_question_counts_when_the_earlier_ones_and_its_epochs_have_ended() -> None:
    stop = UntilKnown(UntilGoal.of("±2"), ["a", "b"], epochs=2)
    counted = []
    for identity in "baaab"[:4]:
        stop.add(identity, 1.0)
        counted.append(stop.num_counted)
    stop.add("b", 0.0)
    assert (counted, stop.num_counted) == ([0, 0, 1, 1], 2)
    assert stop.figures()["estimate"]["value"] == pytest.approx((1 + 0.5) / 2)
    assert stop.conclusion == "known"


@pytest.mark.parametrize(("ours", "theirs", "conclusion"), [(1, 0, "better"), (0, 1, "worse"), (1, 1, "within")])
def test_two_runs(ours: float, theirs: float, conclusion: str) -> None:
    ids = [str(number) for number in range(2000)]
    stop = UntilKnown(UntilGoal.of("vs plain"), ids, baseline=dict.fromkeys(ids, theirs))
    for each in ids:
        if stop.is_settled:
            break
        stop.add(each, ours)
    assert stop.conclusion == conclusion
    assert stop.num_spared == 2000 - stop.num_counted > 1500


def test_at_the_end_a_small_difference_is_within_the_margin_and_a_large_one_is_not() -> None:
    ids = [str(number) for number in range(50)]
    for num_better, conclusion in ((1, "within"), (2, "better")):
        stop = UntilKnown(
            UntilGoal.of("vs plain ±2"), ids, baseline={each: float(int(each) >= num_better) for each in ids}
        )
        for each in reversed(ids):
            stop.add(each, 1.0)
        assert (stop.conclusion, stop.num_spared) == (conclusion, 0)


def test_more_samples_leave_the_order_of_the_others_as_it_is() -> None:
    whole = [each.id for each in stop_of("±2", SAMPLES, 1, 1)[1]]
    part = [each.id for each in stop_of("±2", SAMPLES[:15], 1, 1)[1]]
    assert [each for each in whole if each in part] == part
    assert whole != [each.id for each in stop_of("±2", SAMPLES, 1, 2)[1]]


def test_the_other_run_answers_by_question_over_its_epochs(tmp_path: Path) -> None:
    first, *others = records(3)
    run = written(tmp_path / "run.jsonl", [first, replace(first, epoch=1, correct=False), *others[:5]])
    assert answered_by(run, SAMPLES) == {"0": 0.5, "1": 1, "2": 1, "3": 0, "4": 0, "5": 0}


def test_another_run_must_be_there_and_have_asked_the_same(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="there is no run in nowhere"):
        answered_by("nowhere", SAMPLES)
    run = written(tmp_path / "run.jsonl", records(3))
    with pytest.raises(DatasetError, match="question or answer of '4' is not the same"):
        answered_by(run, [*SAMPLES[:4], SAMPLES[4]._replace(target="8")])
    with pytest.raises(DatasetError, match="has 1 of the 2 questions"):
        answered_by(run, [SAMPLES[0], Example("new", "?", "7")])
