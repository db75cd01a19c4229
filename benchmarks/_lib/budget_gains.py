"""What a plan of budgets gained in served queues: over single budgets, and over itself with types by chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks._lib.budget_arms import ARMS, BY_CHANCE, PLAN, SINGLE, single
from benchmarks._lib.report import Report
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats
from scaffolding_ext.stats.power import required_num_questions

BLOCK = 20  # arrivals that are drawn together, since neighbours in a queue are alike
RESAMPLES = 1000
P95 = 95
BEST, BEST_OF_SEED, AT_RANDOM = "the best single budget", "the best single budget of each seed", "types by chance"
Blocks = npt.NDArray[np.int64]


class Arm(NamedTuple):
    """What one arm came to at a load, over all seeds.

    Attributes:
        correct: 1 where the answer was right, else 0, shape [num_questions].
        seconds: From arrival to answer, likewise.
        objective: In points of accuracy, likewise.
        beyond: Forecast accuracy less that of the question, likewise.
        forecast_seconds: Forecast system time, likewise.
    """

    correct: Floats
    seconds: Floats
    objective: Floats
    beyond: Floats
    forecast_seconds: Floats

    @classmethod
    def of(cls, runs: Sequence[Mapping[str, Any]], arm: str) -> Arm:
        """Of the runs of all seeds."""
        return cls.joined(runs, [arm] * len(runs))

    @classmethod
    def joined(cls, runs: Sequence[Mapping[str, Any]], arms: Sequence[str]) -> Arm:
        """Of the runs of all seeds, each seed's own arm."""
        columns = []
        for run, arm in zip(runs, arms, strict=True):
            found = run["arms"][arm]
            correct, seconds = np.array(found["correct"]), np.array(found["seconds"])
            accuracy, system_time = found["forecast"]
            columns.append(
                (
                    correct,
                    seconds,
                    100 * (correct - seconds / run["alpha"]),
                    accuracy - correct,
                    np.full(len(correct), system_time),
                )
            )
        return cls(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def blocks_of(sizes: Sequence[int]) -> Blocks:
    """The block of each arrival; no block lies in two seeds, and each seed has two at least."""
    parts, first = [], 0
    for number in sizes:
        parts.append(first + np.arange(number) // max(1, min(BLOCK, number // 2)))
        first = int(parts[-1][-1]) + 1
    return np.concatenate(parts)


class Gains:
    """All arms at one load, and the plan against the best of them.

    Args:
        report: Gets the figures.
        name: Of the queue and the load.
        runs: By seed.
    """

    def __init__(self, report: Report, name: str, runs: Mapping[int, Mapping[str, Any]]) -> None:
        self.report, self.name, self.seeds = report, name, list(runs)
        every = list(runs.values())
        self.arms = {arm: Arm.of(every, arm) for arm in ARMS}
        sizes = [len(run["arms"][PLAN]["correct"]) for run in every]
        self.blocks, self.ends = blocks_of(sizes), np.cumsum(sizes)[:-1]
        best = max(map(single, SINGLE), key=lambda arm: float(self.arms[arm].objective.mean()))
        self.others = {BEST: self.arms[best], BEST_OF_SEED: best_of_each_seed(every), AT_RANDOM: self.arms[BY_CHANCE]}
        self.tails = p95_of(report, {**self.arms, **self.others}, self.blocks)
        report.figure(f"{name}: questions an arm", len(self.blocks))
        report.figure(f"{name}: best single budget", SINGLE[[*map(single, SINGLE)].index(best)])

    def add_arms(self) -> None:
        """What each arm came to, beside its forecast."""
        report, blocks = self.report, self.blocks
        for arm, found in self.arms.items():
            name = f"{self.name}, {arm}"
            report.difference(f"{name}: accuracy", found.correct, questions=blocks)
            report.difference(f"{name}: system time", found.seconds, questions=blocks)
            report.figure(f"{name}: p95 of system time", *ends_of(self.tails[arm]))
            report.difference(f"{name}: objective, points", found.objective, questions=blocks)
            report.difference(f"{name}: forecast less served, points", found.beyond, questions=blocks, scale=100)
            if np.isfinite(found.forecast_seconds).all():
                report.ratio(f"{name}: forecast by served time", found.forecast_seconds, found.seconds, blocks)

    def add_gains(self) -> None:
        """What the plan has over other arms, on all seeds together and on each."""
        report, name, blocks, ours = self.report, self.name, self.blocks, self.arms[PLAN]
        for label, theirs in self.others.items():
            gain = report.difference(f"{name}: over {label}, points", ours.objective, theirs.objective, blocks)
            right = f"{name}: over {label}, points of accuracy"
            report.difference(right, ours.correct, theirs.correct, blocks, scale=100)
            report.ratio(f"{name}: system time, times {label}", ours.seconds, theirs.seconds, blocks)
            report.figure(f"{name}: p95, times {label}", *ends_of(self.tails[PLAN] / self.tails[label]))
            report.bar(f"{name}: over {label}, lower end", gain.low, ">", 0)
            gains = ours.objective - theirs.objective
            needed = required_num_questions(gains, blocks, bar=0, max_num_questions=100_000, rng=report.rng)
            if needed is not None:
                report.figure(f"{name}: blocks of {BLOCK} for power 0.9 over {label}", needed)
            parts = zip(self.seeds, np.split(gains, self.ends), np.split(blocks, self.ends), strict=True)
            for seed, own, their_blocks in parts:
                report.difference(f"{name}, seed {seed}: over {label}, points", own, questions=their_blocks)


def best_of_each_seed(runs: Sequence[Mapping[str, Any]]) -> Arm:
    """Of each seed the single budget that did best there."""
    names = [
        max(map(single, SINGLE), key=lambda arm, run=run: float(Arm.of([run], arm).objective.mean())) for run in runs
    ]
    return Arm.joined(runs, names)


def p95_of(report: Report, arms: Mapping[str, Arm], blocks: Blocks) -> dict[str, Floats]:
    """The 95th percentile of each arm's seconds: measured, then of resamples that all arms share."""
    places = [np.flatnonzero(blocks == block) for block in np.unique(blocks)]
    drawn = report.rng.integers(len(places), size=(RESAMPLES, len(places)))
    picks = [np.arange(len(blocks)), *(np.concatenate([places[at] for at in row]) for row in drawn)]
    return {arm: np.array([np.percentile(found.seconds[pick], P95) for pick in picks]) for arm, found in arms.items()}


def ends_of(values: Floats) -> tuple[float, float, float]:
    """A figure and its interval: what was measured, then its resamples."""
    low, high = np.percentile(values[1:], (2.5, 97.5)).tolist()
    return float(values[0]), low, high
