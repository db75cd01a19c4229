"""Derives the number of questions below which `tune` had better keep the default.

    python -m benchmarks.studies.few_questions --data FOLDER --json

Each log of one run is split twice: some of its questions choose, on half of the samples of each, and all others judge,
on the other half of the samples. The choice of `tune` is held against the package's default on the questions that
judge. Settings that are fitted to labelled votes are left out, since they would have seen the questions that judge.

One figure adds tokens and points up: *worth*, the share of the tokens that a choice saves beyond the default, less the
points that it loses beyond it. A point has the price that the vote of all samples pays for it: its tokens beyond those
of one sample, over the points that they gain.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.report import Report
from benchmarks.studies.real import simulated_recording
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.evaluation.logs.read import read_recording
from scaffolding_ext.evaluation.logs.samples import Floats, Recording
from scaffolding_ext.evaluation.tune.choose import Cheapest, candidates_of
from scaffolding_ext.evaluation.tune.endings import Whole
from scaffolding_ext.evaluation.tune.replay import Replay
from scaffolding_ext.evaluation.tune.space import Setting
from scaffolding_ext.evaluation.tune.votes import ReplayResult

SIZES = (10, 20, 30, 50, 100, 200, 400)
LEAST_JUDGES = 20  # questions
MOST_PRICE = 0.5  # of a point, where all samples gain next to nothing
MAX_LOSS = 0.003


class LogSet(NamedTuple):
    """Logs of one kind: a run each."""

    file: str
    task: str | None
    num_samples: int


SETS = {
    "Qwen3, AIME and HMMT": LogSet("qwen3_chains.jsonl.gz", None, 32),
    "Epoch, OTIS Mock AIME": LogSet("epoch_votes.jsonl.gz", "OTIS", 8),
    "Epoch, GPQA Diamond": LogSet("epoch_votes.jsonl.gz", "GPQA", 8),
    "R1-Distill-8B, MATH-500": LogSet("r1_distill_8b_math500_80_samples.jsonl.gz", None, 32),
    "gpt-4o-mini, GSM8K": LogSet("consol_votes.jsonl.gz", "gsm", 40),
    "gpt-4o-mini, MedQA": LogSet("consol_votes.jsonl.gz", "medqa", 40),
}


def logs_of(data: Path | None, num_simulated: int, rng: np.random.Generator) -> Iterator[tuple[str, Recording]]:
    """Yield the recording of each run, with the name of its set."""
    if data is None:
        yield "simulated", simulated_recording(num_simulated, rng)
        return
    for name, (file, task, num_samples) in SETS.items():
        with tempfile.TemporaryDirectory() as folder:
            path = _without_probes(data / file, Path(folder))
            recording = read_recording([path], task=task, num_samples=num_samples if "epoch" in file else None)
        for run in sorted(set(recording.runs)):
            own = recording.taking(np.flatnonzero(np.array(recording.runs) == run).tolist())
            yield name, own.first(min(num_samples, own.num_samples))


def _without_probes(path: Path, folder: Path) -> Path:
    """Copy a log without its probes, which take minutes to grade and choose nothing here."""
    copy = folder / path.name
    with gzip.open(path, "rt", encoding="utf-8") as lines, gzip.open(copy, "wt", encoding="utf-8") as kept:
        for row in map(json.loads, lines):
            for sample in row["samples"]:
                sample.pop("probes", None)
            kept.write(json.dumps(row) + "\n")
    return copy


class Outcome(NamedTuple):
    """A choice on the questions that judge, beside the default: shares of all tokens, and points."""

    tokens: float
    points: float
    default_tokens: float
    default_points: float
    price: float

    @property
    def worth(self) -> float:
        return self.default_tokens - self.tokens + self.price * (self.points - self.default_points)


class Judge:
    """Chooses on some questions of a log and judges on the others, on other samples."""

    def __init__(self, recording: Recording, seed: int) -> None:
        half = recording.num_samples // 2
        parts = [range(half), range(half, 2 * half)]
        chooses, judges = (
            Recording([each.taking(part) for each in recording.questions], recording.sources, recording.fingerprint)
            for part in parts
        )
        self._plays, self._judges = Replay(chooses, seed=seed), Replay(judges, seed=seed)
        self._plays.try_all()
        lists = {name: own for name, own in self._plays.lists.items() if not own[0].is_fitted}
        self._settings, self._found = candidates_of(self._plays, lists)
        self._default = Setting(Whole(), half, LeaderChange())
        self._played: dict[str, ReplayResult] = {}
        tokens, points = self._shares(Setting(Whole(), 1), np.ones(self.num_questions, dtype=bool))
        self.price = min(MOST_PRICE, (1 - tokens) / max(1e-9, -points))

    @property
    def num_questions(self) -> int:
        return len(self._plays.recording.questions)

    def outcome(self, num_questions: int, rng: np.random.Generator) -> Outcome:
        taken = np.zeros(self.num_questions)
        taken[rng.choice(self.num_questions, num_questions, replace=False)] = 1.0
        index = Cheapest(MAX_LOSS).chosen(self._found, taken, rng)
        chosen = self._plays.all_samples if index is None else self._settings[index]
        ours, default = (self._shares(each, taken == 0) for each in (chosen, self._default))
        return Outcome(*ours, *default, self.price)

    def _shares(self, setting: Setting, judges: np.ndarray) -> tuple[float, float]:
        if repr(setting) not in self._played:
            self._played[repr(setting)] = self._judges.play(setting)
        played, full = self._played[repr(setting)], self._judges.full
        tokens = played.costs["decoded"][judges].sum() / full.costs["decoded"][judges].sum()
        return float(tokens), 100 * float((played.right - full.right)[judges].mean())


def add_size(report: Report, title: str, outcomes: list[list[Outcome]]) -> None:
    """Add the figures of choices on so many questions; a log is resampled with all of its choices."""
    logs = [number for number, own in enumerate(outcomes) for _ in own]
    every = [each for own in outcomes for each in own]

    def column(name: str) -> Floats:
        return np.array([getattr(each, name) for each in every], dtype=float)

    groups = logs if len(outcomes) > 1 else None
    report.difference(f"{title}: tokens, share of all", column("tokens"), questions=groups)
    report.difference(f"{title}: points", column("points"), questions=groups)
    report.difference(f"{title}: default: tokens, share of all", column("default_tokens"), questions=groups)
    report.difference(f"{title}: default: points", column("default_points"), questions=groups)
    report.difference(f"{title}: points over the default", column("points"), column("default_points"), groups)
    report.difference(f"{title}: worth over the default", column("worth"), questions=groups, scale=100)
    report.figure(f"{title}: choices worse than the default, share", float((column("worth") < -1e-9).mean()))
    report.figure(f"{title}: logs", len(outcomes))
    report.figure(f"{title}: price of a point, share of all tokens", float(column("price").mean()))


@benchmark("studies.few_questions --data FOLDER")
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of the recordings.")
@size("--num_draws", 20, quick=4, help="Random sets of questions of each log and size.", least=2)
@size("--num_simulated", 120, quick=60, help="Questions that are simulated where there is no folder.", least=40)
def main(report: Report, data: Path | None, num_draws: int, num_simulated: int) -> None:
    """Choices of `tune` on few questions, beside the default."""
    found: dict[int, dict[str, list[list[Outcome]]]] = {size: {} for size in SIZES}
    for name, recording in track(logs_of(data, num_simulated, report.rng), "logs"):
        judge = Judge(recording, report.seed)
        for number, own in found.items():
            if number + LEAST_JUDGES <= judge.num_questions:
                own.setdefault(name, []).append([judge.outcome(number, report.rng) for _ in range(num_draws)])
    for number, by_set in found.items():
        for name, own in by_set.items():
            add_size(report, f"{name}: {number} questions", own)
        if by_set:
            add_size(report, f"all: {number} questions", [each for own in by_set.values() for each in own])


if __name__ == "__main__":
    main()
