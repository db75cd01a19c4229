"""Holds choices and promises of `tune` against questions that had no part in them.

    python -m benchmarks.studies.tune --data FOLDER --part few_questions --json

*few_questions*: the number of questions below which `tune` had better keep the default. Each log of one run is split
twice: some of its questions choose, on half of the samples of each, and all others judge, on the other half of the
samples. Settings that are fitted to labelled votes are left out, since they would have seen the questions that judge.
*Worth* adds tokens and points up: the share of the tokens that a choice saves beyond the default, less the points that
it loses beyond it. A point has the price that the vote of all samples pays for it: its tokens beyond those of one
sample, over the points that they gain.

*at_once*: choices from tokens to time, votes that begin all at once among them, as `tune --max_loss 1` writes them.
Chosen on AIME24, four Qwen3 together, 64 chains a question; judged on AIME25 and HMMT25. R1-Distill-8B on MATH-500, 80
samples of 60 questions, has no other questions, so its figures are those of cross-fitting.

*promises*: half of the questions, drawn at random, are asked for a promise (at most two points lost, with a confidence
of .9), and the promised setting is held against the other half.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

from benchmarks._lib.command import benchmark, recorded, size, track
from benchmarks._lib.report import Report
from benchmarks.studies.autotts import CHOOSES, QWEN3
from benchmarks.studies.real import CONSOL, EPOCH, R1, of_questions
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.evaluation.logs.read import read_recording
from scaffolding_ext.evaluation.logs.samples import Bools, Recording
from scaffolding_ext.evaluation.tune.choose import Cheapest, candidates_of, chosen, cross_validated, promised
from scaffolding_ext.evaluation.tune.endings import Whole
from scaffolding_ext.evaluation.tune.replay import Replay
from scaffolding_ext.evaluation.tune.space import Setting
from scaffolding_ext.evaluation.tune.table import frontier_of
from scaffolding_ext.evaluation.tune.votes import ReplayResult

COLUMNS = ("classes", "correct", "tokens", "seconds", "logprobs", "rewards")  # of a question, by its samples


def whole_chains(path: Path, task: str | None = None, num_samples: int | None = None) -> Recording:
    """The chains of a log without its probes, which take minutes to grade and choose nothing here."""
    with tempfile.TemporaryDirectory() as folder, gzip.open(path, "rt", encoding="utf-8") as rows:
        copy = Path(folder) / "log.jsonl"
        with copy.open("w", encoding="utf-8") as kept:
            for row in map(json.loads, rows):
                for sample in row["samples"]:
                    sample.pop("probes", None)
                kept.write(json.dumps(row) + "\n")
        return read_recording([copy], task=task, num_samples=num_samples)


def parts_of(recording: Recording, is_first: Sequence[bool]) -> tuple[Recording, Recording]:
    """The questions of a mask, and the others."""
    mask = np.array(is_first)
    return of_questions(recording, np.flatnonzero(mask)), of_questions(recording, np.flatnonzero(~mask))


def of_samples(recording: Recording, samples: Sequence[int]) -> Recording:
    """The recording with only these samples of each question; it has no probes."""
    questions = []
    for each in recording.questions:
        columns = ((name, getattr(each, name)) for name in COLUMNS)
        taken = {name: column[list(samples)] for name, column in columns if column is not None}
        questions.append(dataclasses.replace(each, **taken))
    return dataclasses.replace(recording, questions=questions)


# ---- few questions

SIZES = (10, 20, 30, 50, 100, 200)
LEAST_JUDGES = 20  # questions
MOST_PRICE = 0.5  # of a point, where all samples gain next to nothing
CLOSEST = 0.003  # what a choice may lose
LOGS = (  # files, their tasks, and samples of a question
    (QWEN3, None, 32),
    (EPOCH, "OTIS", 8),
    (EPOCH, "GPQA", 8),
    (R1, None, 32),
    (CONSOL, "gsm", 40),
    (CONSOL, "medqa", 40),
)


def logs_of(data: Path) -> Iterator[Recording]:
    """The recording of each run."""
    for file, task, num_samples in LOGS:
        recording = whole_chains(data / file, task, num_samples if file == EPOCH else None)
        for run in sorted(set(recording.runs)):
            own, _ = parts_of(recording, [each == run for each in recording.runs])
            yield of_samples(own, range(min(num_samples, own.num_samples)))


class Outcome(NamedTuple):
    """A choice on the questions that judge, beside the default: shares of all tokens, and points."""

    tokens: float
    points: float
    default_tokens: float
    default_points: float
    worth: float


class Judge:
    """Chooses on some questions of a log and judges on the others, on other samples."""

    def __init__(self, recording: Recording, seed: int) -> None:
        half = recording.num_samples // 2
        chooses, judges = (of_samples(recording, part) for part in (range(half), range(half, 2 * half)))
        self._plays, self._judges = Replay(chooses, seed=seed), Replay(judges, seed=seed)
        self._plays.try_all()
        lists = {name: own for name, own in self._plays.lists.items() if not own[0].is_fitted}
        self._settings, self._found = candidates_of(self._plays, lists)
        self._played: dict[str, ReplayResult] = {}
        tokens, points = self._shares(Setting(Whole(), 1), np.ones(self.num_questions, dtype=bool))
        self._price = min(MOST_PRICE, (1 - tokens) / max(1e-9, -points))

    @property
    def num_questions(self) -> int:
        return len(self._plays.recording.questions)

    def outcome(self, num_questions: int, rng: np.random.Generator) -> Outcome:
        taken = np.zeros(self.num_questions)
        taken[rng.choice(self.num_questions, num_questions, replace=False)] = 1.0
        index = Cheapest(CLOSEST).chosen(self._found, taken, rng)
        setting = self._plays.all_samples if index is None else self._settings[index]
        (tokens, points), (default_tokens, default_points) = (
            self._shares(each, taken == 0) for each in (setting, self._plays.default)
        )
        worth = default_tokens - tokens + self._price * (points - default_points)
        return Outcome(tokens, points, default_tokens, default_points, worth)

    def _shares(self, setting: Setting, judges: Bools) -> tuple[float, float]:
        if repr(setting) not in self._played:
            self._played[repr(setting)] = self._judges.play(setting)
        played, full = self._played[repr(setting)], self._judges.full
        tokens = played.costs["decoded"][judges].sum() / full.costs["decoded"][judges].sum()
        return float(tokens), 100 * float((played.right - full.right)[judges].mean())


def few_questions(report: Report, data: Path, num_draws: int) -> None:
    """Choices on few questions beside the default; a log is resampled with all of its choices."""
    found: dict[int, list[list[Outcome]]] = {size: [] for size in SIZES}
    for recording in track(logs_of(data), "logs"):
        judge = Judge(recording, report.seed)
        for number, outcomes in found.items():
            if number + LEAST_JUDGES <= judge.num_questions:
                outcomes.append([judge.outcome(number, report.rng) for _ in range(num_draws)])
    for number, outcomes in found.items():
        if not outcomes:
            continue
        logs = [log for log, own in enumerate(outcomes) for _ in own] if len(outcomes) > 1 else None
        every = [each for own in outcomes for each in own]
        report.figure(f"{number} questions: logs", len(outcomes))
        for name, column in zip(Outcome._fields, zip(*every, strict=True), strict=True):
            report.difference(f"{number} questions: {name.replace('_', ': ')}", column, questions=logs)
        num_worse = sum(each.worth < -1e-9 for each in every)
        report.figure(f"{number} questions: choices worse than the default, share", num_worse / len(every))


# ---- at once

MAX_LOSS = 0.01
WIDE = 20


def add(report: Report, title: str, plays: Replay, played: ReplayResult) -> float:
    """Add tokens, path and points of a setting; return the points."""
    for what, cost in (("tokens", "decoded"), ("longest path", "critical")):
        report.ratio(f"{title}: {what}, share of all", played.costs[cost], plays.full.costs[cost], plays.groups)  # type: ignore[index]
    return report.difference(f"{title}: points", played.right, plays.full.right, plays.groups, scale=100).value


def run(report: Report, name: str, chooses: Recording, judges: Recording | None = None) -> Replay:
    """Choose, and judge the choice and the frontier on other questions."""
    plays, goal = Replay(chooses), Cheapest(MAX_LOSS)
    plays.try_all()
    setting = chosen(plays, goal)
    assert setting is not None  # all samples lose nothing
    report.setting[f"{name}: chosen"] = repr(setting)
    add(report, f"{name}: chosen, cross-fitted", plays, cross_validated(plays, goal))
    is_wide = setting.in_flight == setting.num_samples <= chooses.num_samples / 2
    report.bar(f"{name}: the choice is a wide vote", is_wide, *((">=", 1) if judges else ("<=", 0)))
    if judges is None:
        return plays
    other = Replay(judges)
    points = add(report, f"{name}: chosen, judged", other, other.play(setting))
    report.bar(f"{name}: chosen, judged: points", points, ">=", -100 * MAX_LOSS)
    for row in track(frontier_of(plays, goal), name):
        title = f"{name}: time {row.time_share:g}"
        report.setting[title] = repr(row.setting)
        for what, estimate in (("tokens, share of all", row.tokens), ("longest path, share of all", row.path)):
            report.figure(f"{title}: {what}", *estimate)
        report.figure(f"{title}: points", *row.points)
        add(report, f"{title}, judged", other, other.play(row.setting))
    return plays


def at_once(report: Report, data: Path, _: int) -> None:
    """Choices from tokens to time."""
    qwen3 = whole_chains(data / QWEN3, num_samples=64)
    run(report, "Qwen3", *parts_of(qwen3, [each.task == CHOOSES for each in qwen3.questions]))
    plays = run(report, "R1", whole_chains(data / R1, num_samples=80))
    wide = Setting(Whole(), WIDE, LeaderChange(), in_flight=WIDE)
    add(report, f"R1: {WIDE} of {WIDE} at once", plays, plays.play(wide))


# ---- promises

PROMISING = {"gpt-4o-mini, GSM8K": (CONSOL, "gsm", 40), "R1-Distill-8B, MATH-500": (R1, None, 16)}
PROMISED_LOSS, CONFIDENCE = 0.02, 0.9
MOST_BROKEN = 0.14  # 10 %, and what 200 draws add by chance


def promises(report: Report, data: Path, num_draws: int) -> None:
    """Promises on random halves of a recording, held against the other halves."""
    for name, (file, task, num_samples) in PROMISING.items():
        recording = read_recording([data / file], task=task, num_samples=num_samples)
        trial = Replay(recording)
        trial.try_all()
        shares, losses = [], []
        for _ in track(range(num_draws), name):
            order = report.rng.permutation(len(recording.questions))
            half, other = np.split(order, [len(order) // 2])
            promise = promised(trial, PROMISED_LOSS, CONFIDENCE, half.tolist())
            if promise.setting is None:
                continue
            played = trial.played[promise.setting]
            losses.append(float(played.lost[other].mean()))
            shares.append(float(played.costs["decoded"][other].sum() / trial.full.costs["decoded"][other].sum()))
        broken = sum(loss > PROMISED_LOSS for loss in losses)
        report.share(f"{name}: halves with a promise", len(losses), num_draws)
        report.share(f"{name}: halves whose promise breaks", broken, num_draws)
        if shares:
            report.figure(f"{name}: tokens of the other half, share of all", float(np.mean(shares)))
        report.bar(f"{name}: share of the halves whose promise breaks", broken / num_draws, "<=", MOST_BROKEN)


PARTS = {"few_questions": few_questions, "at_once": at_once, "promises": promises}
NUM_DRAWS = {"few_questions": 20, "at_once": 1, "promises": 200}


@benchmark("studies.tune --data FOLDER --part promises")
@recorded
@click.option("--part", "parts", type=click.Choice(list(PARTS)), multiple=True, help="May be repeated.  [default: all]")
@size(
    "--num_draws",
    0,
    quick=2,
    help="Random sets of questions; 0 takes 20 sets of few questions and 200 halves.",
    least=0,
)
def main(report: Report, data: Path, parts: Sequence[str], num_draws: int) -> None:
    """Choices and promises of `tune`, on questions that had no part in them."""
    for part in parts or PARTS:
        PARTS[part](report, data, num_draws or NUM_DRAWS[part])


if __name__ == "__main__":
    main()
