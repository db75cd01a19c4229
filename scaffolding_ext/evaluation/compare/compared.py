"""Compare finished runs on their common samples: accuracy, tokens, time, and reasons to doubt the comparison."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scaffolding_ext.documents import plain
from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.compare.finished_run import FinishedRun, Key, distinct_names, read_run
from scaffolding_ext.evaluation.run.records import Record, each_record
from scaffolding_ext.evaluation.run.run_stats import Column
from scaffolding_ext.stats.intervals import Estimate, McNemar, bootstrap_quotients, mcnemar_exact, share_of_questions
from scaffolding_ext.stats.resampling import Integers

FEW_QUESTIONS = 30  # below which a percentile interval is too narrow
_LEFT_EARLY = {"probe": "stop", "warm_up": "unsure"}  # event of a rule's probe, and of its end of a chain
_TOKENS = ("decoded", "computed")
_SETTINGS = ("prompt", "workers")  # of a stack; if they differ, so do the questions or the models


class Point(NamedTuple):
    """A run on the plane of accuracy and tokens.

    Attributes:
        accuracy: Share of right answers, with its 95 % interval.
        tokens: Decoded tokens per sample, with its 95 % interval, resampled by question.
    """

    run: str
    accuracy: Estimate
    tokens: Estimate


@dataclass(frozen=True)
class Comparison:
    """A run compared with a baseline on their common samples. Failed requests are wrong, with their actual cost.

    Attributes:
        num_samples: Common samples; each epoch counts.
        num_questions: Distinct questions among them.
        accuracy_difference: Accuracy of the run minus that of the baseline, with its 95 % interval.
        mcnemar: McNemar's exact test. A question with several epochs counts for the run that was right in more of
            them, which makes it the exact sign test.
        ratios: Run over baseline for `decoded` and `computed` tokens, with 95 % intervals; None if the baseline's total
            is 0, and for `computed` if a server told no cached tokens.
        seconds_ratio: Run over baseline for seconds; None if the baseline's total is 0. It has no interval, because
            resampled questions do not show how the machine's load differed between the runs.
        only_baseline_right: Samples that only the baseline gets right, in the order of its file.
    """

    baseline: str
    run: str
    num_samples: int
    num_questions: int
    accuracy_difference: Estimate
    mcnemar: McNemar
    baseline_point: Point
    run_point: Point
    ratios: dict[str, Estimate | None]
    seconds_ratio: float | None
    only_baseline_right: list[Key]
    only_run_right: list[Key]
    warnings: list[str]


class Pairing(NamedTuple):
    """Records of samples that all runs have.

    Attributes:
        baseline: The first run.
        rows: For each run, indices of these samples' records, in the order of the first run's file.
        question_of: Number of each sample's question; epochs of a question share it.
    """

    baseline: FinishedRun
    rows: list[Integers]
    question_of: Integers
    num_questions: int

    @property
    def num_samples(self) -> int:
        """Common samples; each epoch counts."""
        return len(self.question_of)

    def key(self, number: int) -> Key:
        return self.baseline.key(int(self.rows[0][number]))

    def totals(self, column: Column) -> Column:
        """Sum a column of paired samples by question."""
        return np.bincount(self.question_of, weights=column, minlength=self.num_questions).astype(np.float64)


def paired(runs: Sequence[FinishedRun]) -> Pairing:
    """Pair runs by sample and epoch.

    Raises:
        DatasetError: They share fewer than two questions.
    """
    first = runs[0].tally.questions
    num_epochs = 1 + max(int(run.columns["epoch"].max()) for run in runs)
    codes = []  # of each run's records: question number in the first run, and epoch; negative if it has none
    for run in runs:
        number_of = np.array([first.get(name, -num_epochs) for name in run.tally.questions], dtype=np.int64)
        question, epoch = (run.columns[name].astype(np.int64) for name in ("question", "epoch"))
        codes.append(number_of[question] * num_epochs + epoch)
    common = functools.reduce(np.intersect1d, (own[own >= 0] for own in codes))
    in_order = codes[0][np.isin(codes[0], common)]
    rows = []
    for own in codes:
        order = np.argsort(own)
        rows.append(order[np.searchsorted(own, in_order, sorter=order)])
    _, first_place, question_of = np.unique(in_order // num_epochs, return_index=True, return_inverse=True)
    if len(first_place) < 2:
        raise DatasetError(
            f"{' and '.join(run.name for run in runs)} have {len(first_place)} questions in common; a comparison needs "
            "at least 2: run both on the same dataset, because requests are paired by id and epoch"
        )
    question_of = np.argsort(np.argsort(first_place))[question_of]  # in the order of the first run's file
    return Pairing(runs[0], rows, question_of.astype(np.int64), len(first_place))


def compare(baseline: FinishedRun, run: FinishedRun, *, seed: int = 0, num_resamples: int = 10_000) -> Comparison:
    """Compare a run with a baseline.

    Accuracies have the interval of `share_of_questions`. The others are percentiles of a bootstrap that draws whole
    questions, with all their epochs.

    Args:
        seed: Of the resamples; the same runs and seed give the same figures.

    Raises:
        DatasetError: They share fewer than two questions.
    """
    pairs = paired((baseline, run))
    theirs, ours = (
        {name: column[rows] for name, column in one.columns.items()}
        for one, rows in zip((baseline, run), pairs.rows, strict=True)
    )
    rng = np.random.default_rng(seed)
    knows_reuse = not any(one.tally.num_unknown_reuse_tasks for one in (baseline, run))
    kinds = [name for name in _TOKENS if theirs[name].sum() > 0 and (name == "decoded" or knows_reuse)]
    num_samples = pairs.totals(np.ones(pairs.num_samples))
    right = pairs.totals(ours["correct"]), pairs.totals(theirs["correct"])
    decoded = [pairs.totals(columns["decoded"]) for columns in (theirs, ours)]
    accuracy, *estimates = bootstrap_quotients(
        np.column_stack([right[0] - right[1], *decoded, *(pairs.totals(ours[kind]) for kind in kinds)]),
        np.column_stack([num_samples] * 3 + [pairs.totals(theirs[kind]) for kind in kinds]),
        rng=rng,
        num_resamples=num_resamples,
    )
    ratios = dict(zip(kinds, estimates[2:], strict=True))
    gain = ours["correct"] - theirs["correct"]
    return Comparison(
        baseline=baseline.name,
        run=run.name,
        num_samples=pairs.num_samples,
        num_questions=pairs.num_questions,
        accuracy_difference=accuracy,
        mcnemar=mcnemar_exact(right[1] > right[0], right[0] > right[1]),
        baseline_point=Point(baseline.name, share_of_questions(right[1], num_samples), estimates[0]),
        run_point=Point(run.name, share_of_questions(right[0], num_samples), estimates[1]),
        ratios={kind: ratios.get(kind) for kind in _TOKENS},
        seconds_ratio=None if not theirs["seconds"].any() else float(ours["seconds"].sum() / theirs["seconds"].sum()),
        only_baseline_right=[pairs.key(row) for row in np.flatnonzero(gain < 0).tolist()],
        only_run_right=[pairs.key(row) for row in np.flatnonzero(gain > 0).tolist()],
        warnings=[*_unclear_saving(run.name, ratios.get("decoded")), *_warnings(baseline, run, pairs)],
    )


def _unclear_saving(name: str, decoded: Estimate | None) -> list[str]:
    if decoded is None or not decoded.low < 1 < decoded.high:
        return []
    return [
        f"the saving of decoded tokens by {name} is not distinguishable from none at this sample size: its interval "
        "contains zero"
    ]


def _warnings(baseline: FinishedRun, run: FinishedRun, pairs: Pairing) -> list[str]:
    found = [*_warnings_of_pairs(baseline, run, pairs), *_warnings_of_settings(baseline, run)]
    for one in (baseline, run):
        found += _warnings_of_run(one)
    return found


def _warnings_of_pairs(baseline: FinishedRun, run: FinishedRun, pairs: Pairing) -> list[str]:
    found = [
        f"requests that only {one.name} has: {one.tally.num_samples - pairs.num_samples}; they are ignored"
        for one in (baseline, run)
        if one.tally.num_samples > pairs.num_samples
    ]
    if pairs.num_questions < FEW_QUESTIONS:
        found.append(f"{pairs.num_questions} questions are few: below {FEW_QUESTIONS} the intervals are too narrow")
    theirs, ours = (
        np.array(one.tally.marks)[one.columns["question"][rows].astype(np.int64)]
        for one, rows in zip((baseline, run), pairs.rows, strict=True)
    )
    for what, num_different in zip(("prompts", "right answers"), (theirs != ours).sum(axis=0), strict=True):
        if num_different:
            found.append(
                f"the {what} of {num_different} of {pairs.num_samples} requests differ: the runs were asked different "
                "things"
            )
    return found


def _warnings_of_settings(baseline: FinishedRun, run: FinishedRun) -> list[str]:
    found = []
    if baseline.config and run.config:
        differing = [key for key in _SETTINGS if _told(baseline.config, key) != _told(run.config, key)]
        if "prompt" in differing:
            found.append("prompts differ: the stacks' `prompt` sections are not the same")
        seeds = [one.config.get("seed") for one in (baseline, run)]
        if seeds[0] != seeds[1] and _but_for_its_seed(baseline.config) == _but_for_its_seed(run.config):
            found.append(
                f"{baseline.name} and {run.name} are one stack with the seeds {seeds[0]} and {seeds[1]}, compared as "
                "two: to pool repeats in one accuracy, run the stack once with --epochs 2"
            )
        if "workers" in differing:
            found.append("the stacks' `workers` sections differ: part of the difference may be theirs")
    return found


def _but_for_its_seed(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in ("seed", "evaluation")}


def _told(config: Mapping[str, Any], key: str) -> Any:
    """A section of a stack; a comparer of answers, which only votes need, is no difference between workers."""
    section = config.get(key) or None
    return {tag: each for tag, each in section.items() if tag != "compare"} if section and key == "workers" else section


def _warnings_of_run(run: FinishedRun) -> list[str]:
    found = []
    summary = run.summary
    if summary.num_failed:
        timed_out = f" ({summary.num_timed_out} timed out)" if summary.num_timed_out else ""
        finished = "" if summary.accuracy_of_finished is None else f", of the others {summary.accuracy_of_finished:.1%}"
        found.append(
            f"{summary.num_failed} of {summary.num_samples} requests of {run.name} failed{timed_out}, and none of them "
            f"counts as right{finished}"
        )
    if summary.num_unmetered_tasks:
        found.append(
            f"{run.name} has {summary.num_unmetered_tasks} tasks without token counts: its token figures are too low"
        )
    if summary.num_unknown_reuse_tasks:
        found.append(f"the server of {run.name} tells no cached tokens: computed tokens are not reported")
    for probed, left in _LEFT_EARLY.items():
        num_probed = run.tally.num_with_event[probed]
        if num_probed and not run.tally.num_with_event[left]:
            found.append(
                f"the early-exit rule of {run.name} never fired: it probed {num_probed} requests and ended no chain "
                "early, so it only added cost"
            )
    votes = [section for section in summary.sections.values() if {"samples", "stop_reason"} <= section.keys()]
    ended_early = any("certain" in (section["stop_reason"].counts or ()) for section in votes)
    if len(run.tally.vote_sizes) == 1 and sum(run.tally.vote_sizes.values()) > 1 and not ended_early:
        (size,) = run.tally.vote_sizes
        found.append(f"the allocation of {run.name} never ended a vote early: all of them drew {size} answers")
    return found


class Compared(NamedTuple):
    """Runs and their comparisons.

    Attributes:
        runs: The baseline first.
        comparisons: Of each other run with the baseline.
    """

    runs: list[FinishedRun]
    comparisons: list[Comparison]

    @property
    def points(self) -> list[Point]:
        """Accuracy and tokens of each run, on the samples that it shares with the first."""
        return [self.comparisons[0].baseline_point, *(one.run_point for one in self.comparisons)]

    @property
    def warnings(self) -> list[str]:
        """Warnings of all comparisons, without repeats."""
        return list(dict.fromkeys(warning for one in self.comparisons for warning in one.warnings))

    def to_json(self) -> dict[str, Any]:
        return {
            "runs": {run.name: run.summary.to_json() for run in self.runs},
            "comparisons": plain(self.comparisons),
            "points": plain(self.points),
        }


def compare_runs(paths: Sequence[Path], *, seed: int = 0) -> Compared:
    """Read runs, and compare each with the first.

    Args:
        paths: Folders or files of records, at least two.

    Raises:
        DatasetError: A run cannot be read, is given twice, or shares fewer than two questions with the first.
    """
    runs = [read_run(path, name) for path, name in zip(paths, distinct_names(paths), strict=True)]
    return Compared(runs, [compare(runs[0], run, seed=seed) for run in runs[1:]])


class PairedSample(NamedTuple):
    """A sample and its record in each run."""

    key: Key
    records: list[Record]


def kept_samples(runs: Sequence[FinishedRun], num_samples: int) -> list[PairedSample]:
    """Read the full records of some samples that all runs have.

    Args:
        num_samples: Maximum number; samples on which runs disagree come first, then the first run's order.

    Returns:
        The samples, in the order of the first run's file.

    Raises:
        DatasetError: The runs share fewer than two questions, or a file can no longer be read.
    """
    pairs = paired(runs)
    right = [run.columns["correct"][rows] for run, rows in zip(runs, pairs.rows, strict=True)]
    agreeing = np.all([column == right[0] for column in right], axis=0)
    keys = [pairs.key(number) for number in np.sort(np.argsort(agreeing, kind="stable")[:num_samples])]
    wanted = set(keys)
    found = [_records_of(run.path, wanted) for run in runs]
    return [PairedSample(key, [own[key] for own in found]) for key in keys]


def _records_of(path: Path, wanted: Collection[Key]) -> dict[Key, Record]:
    every = ((Key(record.id, record.epoch), record) for record in each_record(path))
    return {key: record for key, record in every if key in wanted}
