"""Runs are paired by sample and epoch, and what makes a comparison doubtful is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import stats

from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.compare.compared import Comparison, compare
from scaffolding_ext.evaluation.compare.finished_run import Key, read_run
from scaffolding_ext.evaluation.run.records import RecordError
from scaffolding_ext.stats.intervals import bootstrap_quotients, paired_bootstrap

Rows = list[tuple[Any, ...]]
CONFIG = (
    "controller: {{type: NativeGenerationController, args: {{}}}}\nworkers: {{generation: {{type: {worker}}}}}\n{more}"
)


@pytest.fixture
def compared(write_run: Callable[..., Path]) -> Callable[[Rows, Rows], Comparison]:
    def make(baseline: Rows, run: Rows, *configs: str) -> Comparison:
        folders = [
            write_run(name, rows, config)
            for name, rows, config in zip(("base", "ours"), (baseline, run), configs or (None, None), strict=True)
        ]
        return compare(*(read_run(folder) for folder in folders), num_resamples=2_000)

    return make


def rows(num: int, right: Callable[[int], bool], decoded: Callable[[int], int], **changes: Any) -> Rows:
    return [(f"q{number}", right(number), decoded(number), changes) for number in range(num)]


def test_figures_are_those_of_the_paired_samples_whatever_their_order(compared: Callable[..., Comparison]) -> None:
    baseline = rows(60, lambda n: n % 3 > 0, lambda n: 100 + n)
    ours = rows(60, lambda n: n % 4 > 0, lambda n: 60 + 2 * (n % 7), probes=5)
    found = compared(baseline, ours[::-1])
    right = [np.array([row[1] for row in one], float) for one in (baseline, ours)]
    tokens = [np.array([row[2] for row in one], float) for one in (baseline, ours)]
    assert found.num_samples == found.num_questions == 60
    by_hand = paired_bootstrap(right[1], right[0], rng=np.random.default_rng(5))
    assert found.accuracy_difference == pytest.approx(by_hand, abs=0.02)
    assert found.accuracy_difference.value == pytest.approx(by_hand.value)
    (ratio,) = bootstrap_quotients(tokens[1][:, None] + 5, tokens[0][:, None], rng=np.random.default_rng(5))
    assert found.ratios["decoded"] == pytest.approx(ratio, rel=0.01)
    assert found.seconds_ratio == pytest.approx(tokens[1].sum() / tokens[0].sum())
    only = [[f"q{n}" for n in range(60) if a(n) and not b(n)] for a, b in ((_by(3), _by(4)), (_by(4), _by(3)))]
    assert [key.id for key in found.only_baseline_right] == only[0]
    assert sorted(key.id for key in found.only_run_right) == sorted(only[1])
    counts = [len(ids) for ids in only]
    assert found.mcnemar[:2] == tuple(counts)
    assert found.mcnemar.p_value == pytest.approx(stats.binomtest(counts[0], sum(counts)).pvalue)


def _by(divisor: int) -> Callable[[int], bool]:
    return lambda number: number % divisor > 0


def test_epochs_of_a_question_are_drawn_together_and_pair_by_epoch(compared: Callable[..., Comparison]) -> None:
    baseline = [(f"q{n}", n % 2 == 0, 100, {"epoch": epoch}) for n in range(40) for epoch in range(3)]
    ours = [(f"q{n}", n % 2 == 0 or epoch == 2, 50, {"epoch": epoch}) for n in range(40) for epoch in range(4)]
    found = compared(baseline, ours)
    assert (found.num_samples, found.num_questions) == (120, 40)
    assert found.mcnemar[:2] == (0, 20)  # a question counts once
    assert found.only_run_right[0] == Key("q1", 2)
    assert found.warnings == ["requests that only ours has: 40; they are ignored"]
    assert found.ratios["decoded"] == pytest.approx((0.5, 0.5, 0.5))


def test_where_nothing_differs_there_is_no_ratio(compared: Callable[..., Comparison]) -> None:
    same = rows(40, lambda n: n % 2 > 0, lambda n: 0)
    found = compared(same, same)
    assert found.ratios == {"decoded": None, "computed": pytest.approx((1, 1, 1))}
    assert found.seconds_ratio is None
    assert (found.mcnemar.p_value, found.warnings) == (1, [])


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"prompt_hash": "f" * 16}, "the prompts of 40 of 40 requests differ"),
        ({"target": "7"}, "the right answers of 40 of 40 requests differ"),
        ({"error": RecordError("TaskError", "x")._asdict()}, "40 of 40 requests of ours failed"),
        ({"trace": [{"event": "probe", "branch": [], "seconds": 0.0}]}, "the early-exit rule of ours never fired"),
        (
            {"trace": [{"event": "vote", "branch": [], "seconds": 0.0, "num_samples": 8, "num_rounds": 3}]},
            "the allocation of ours never ended a vote early: all of them drew 8 answers",
        ),
    ],
)
def test_what_makes_it_doubtful_is_said(
    compared: Callable[..., Comparison], changes: dict[str, Any], warning: str
) -> None:
    plain = rows(40, lambda n: n % 2 > 0, lambda n: 9)
    (found,) = compared(plain, rows(40, lambda n: n % 2 > 0, lambda n: 9, **changes)).warnings
    assert found.startswith(warning)


def test_votes_that_ended_early_after_the_same_number_of_samples_are_not_called_full(
    compared: Callable[..., Comparison],
) -> None:
    vote = {"event": "vote", "branch": [], "seconds": 0.0, "num_samples": 7, "num_rounds": 2}
    early = {"trace": [vote], "figures": {"MajorityVoteController": {"samples": 7, "stop_reason": {"certain": 1}}}}
    plain = rows(40, lambda n: n % 2 > 0, lambda n: 9)
    assert compared(plain, rows(40, lambda n: n % 2 > 0, lambda n: 9, **early)).warnings == []


def test_a_rule_that_fired_once_is_not_warned_about(compared: Callable[..., Comparison]) -> None:
    probe = {"event": "probe", "branch": [], "seconds": 0.0}
    ours = rows(40, lambda n: n % 2 > 0, lambda n: 9, trace=[probe])
    ours[3] = ("q3", True, 9, {"trace": [probe, {"event": "stop", "branch": [], "seconds": 0.1}]})
    assert compared(ours, ours).warnings == []


@pytest.mark.parametrize(
    ("worker", "more", "warning"),
    [("Other", "", "the stacks' `workers` sections differ"), ("Worker", "prompt: {system: hi}", "prompts differ")],
)
def test_stacks_that_ask_otherwise_are_told(
    compared: Callable[..., Comparison], worker: str, more: str, warning: str
) -> None:
    plain = rows(40, lambda n: n % 2 > 0, lambda n: 9)
    configs = CONFIG.format(worker="Worker", more=""), CONFIG.format(worker=worker, more=more)
    (found,) = compared(plain, plain, *configs).warnings
    assert found.startswith(warning)


def test_a_comparer_of_answers_is_no_difference_between_workers(compared: Callable[..., Comparison]) -> None:
    plain = rows(40, lambda n: n % 2 > 0, lambda n: 9)
    config = CONFIG.format(worker="Worker", more="")
    with_comparer = yaml.safe_load(config)
    with_comparer["workers"]["compare"] = {"type": "CompareWorker"}
    assert compared(plain, plain, config, yaml.safe_dump(with_comparer)).warnings == []


def test_two_seeds_of_one_stack_are_told_how_repeats_are_pooled(compared: Callable[..., Comparison]) -> None:
    plain = rows(40, lambda n: n % 2 > 0, lambda n: 9)
    configs = [CONFIG.format(worker="Worker", more=f"seed: {seed}") for seed in (3, 4)]
    (found,) = compared(plain, plain, *configs).warnings
    assert found.startswith("base and ours are one stack with the seeds 3 and 4, compared as two: ")
    assert found.endswith("run the stack once with --epochs 2")


def test_runs_of_other_data_are_refused(compared: Callable[..., Comparison]) -> None:
    other = [(f"other{n}", True, 9) for n in range(40)]
    with pytest.raises(DatasetError, match="base and ours have 0 questions in common"):
        compared(rows(40, lambda n: True, lambda n: 9), other)


@pytest.mark.parametrize(("decoded", "is_unclear"), [(lambda n: 50 + 2 * n, True), (lambda n: 20 + n, False)])
def test_a_saving_whose_interval_contains_zero_is_said_to_be_none_yet(
    compared: Callable[..., Comparison], decoded: Callable[[int], int], is_unclear: bool
) -> None:
    found = compared(rows(40, lambda n: True, lambda n: 91), rows(40, lambda n: True, decoded))
    ratio = found.ratios["decoded"]
    assert ratio is not None
    assert (ratio.value < 1, ratio.low < 1 < ratio.high) == (True, is_unclear)
    assert any("not distinguishable from none at this sample size" in told for told in found.warnings) is is_unclear


def test_few_questions_are_told(compared: Callable[..., Comparison]) -> None:
    few = rows(5, lambda n: n % 2 > 0, lambda n: 9)
    assert compared(few, few).warnings == ["5 questions are few: below 30 the intervals are too narrow"]


def test_a_sample_that_is_there_twice_is_refused(write_run: Callable[..., Path]) -> None:
    with pytest.raises(DatasetError, match="'a', epoch 0, twice"):
        read_run(write_run("run", [("a", True, 1), ("a", True, 2)]))
