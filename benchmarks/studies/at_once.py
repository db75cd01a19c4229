"""Holds the choices of `tune`, among them votes that begin all at once, against other questions.

    python -m benchmarks.studies.at_once --data FOLDER --json

*Qwen3*: chosen on AIME24, four models together, 64 chains a question; judged on AIME25 and HMMT25, which had no part in
any choice. The choice, and the rows from tokens to time, are as `tune --max_loss 1` writes them.

*R1-Distill-8B*, MATH-500, 80 samples of 60 questions: there chains that end first are not the better ones. It has no
other questions to judge on, so its figures are those of cross-fitting.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from benchmarks._lib.command import benchmark, track
from benchmarks._lib.report import Report
from benchmarks.studies.autotts import CHOOSES
from benchmarks.studies.real import simulated_recording
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.evaluation.logs.read import read_recording
from scaffolding_ext.evaluation.logs.samples import Recording
from scaffolding_ext.evaluation.tune.choose import Cheapest, chosen, cross_validated
from scaffolding_ext.evaluation.tune.endings import Whole
from scaffolding_ext.evaluation.tune.replay import Replay
from scaffolding_ext.evaluation.tune.space import Setting
from scaffolding_ext.evaluation.tune.table import frontier_of
from scaffolding_ext.evaluation.tune.votes import ReplayResult

QWEN3, R1 = "qwen3_chains.jsonl.gz", "r1_distill_8b_math500_80_samples.jsonl.gz"
MAX_LOSS = 0.01
WIDE = 20


def votes_of(path: Path, num_samples: int, keeps: Callable[[str], bool] = lambda _: True) -> Recording:
    """The whole chains of a file's tasks. Their probes are dropped before they are read, since grading them is slow."""
    with tempfile.TemporaryDirectory() as folder, gzip.open(path, "rt", encoding="utf-8") as rows:
        log = Path(folder) / "log.jsonl"
        with log.open("w", encoding="utf-8") as whole:
            for row in map(json.loads, rows):
                if keeps(row.get("task", "")):
                    for sample in row["samples"]:
                        sample.pop("probes", None)
                    whole.write(json.dumps(row) + "\n")
        return read_recording([log], num_samples=num_samples)


def add(report: Report, title: str, plays: Replay, played: ReplayResult) -> float:
    """Add tokens, path and points of a setting; return the points."""
    for what, cost in (("tokens", "decoded"), ("longest path", "critical")):
        report.ratio(f"{title}: {what}, share of all", played.costs[cost], plays.full.costs[cost], plays.groups)  # type: ignore[index]
    return report.difference(f"{title}: points", played.right, plays.full.right, plays.groups, scale=100).value


def is_wide(setting: Setting, num_samples: int) -> bool:
    """True for a vote of at most half of the samples that all begin at once."""
    return setting.in_flight == setting.num_samples <= num_samples / 2


def run(report: Report, name: str, chooses: Recording, judges: Recording | None) -> tuple[Replay, Setting]:
    """Choose, and judge the choice and the frontier on other questions; return the choice."""
    plays, goal = Replay(chooses), Cheapest(MAX_LOSS)
    plays.try_all()
    setting = chosen(plays, goal)
    assert setting is not None  # all samples lose nothing
    report.setting[f"{name}: chosen"] = repr(setting)
    add(report, f"{name}: chosen, cross-fitted", plays, cross_validated(plays, goal))
    rows = frontier_of(plays, goal)
    for row in rows:
        report.setting[f"{name}: time {row.time_share:g}"] = repr(row.setting)
        for what, estimate in (("tokens, share of all", row.tokens), ("longest path, share of all", row.path)):
            report.figure(f"{name}: time {row.time_share:g}: {what}", *estimate)
        report.figure(f"{name}: time {row.time_share:g}: points", *row.points)
    if judges is not None:
        other = Replay(judges)
        points = add(report, f"{name}: chosen, judged", other, other.play(setting))
        report.bar(f"{name}: chosen, judged: points", points, ">=", -100 * MAX_LOSS)
        for row in track(rows, name):
            add(report, f"{name}: time {row.time_share:g}, judged", other, other.play(row.setting))
    return plays, setting


@benchmark("studies.at_once --data FOLDER")
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of the recordings.")
def main(report: Report, data: Path | None) -> None:
    """Choices of `tune` with votes that begin all at once, on questions that had no part in them."""
    if data is None:
        run(report, "simulated", simulated_recording(60, report.rng), simulated_recording(60, report.rng))
        return
    plays, setting = run(
        report,
        "Qwen3",
        votes_of(data / QWEN3, 64, lambda task: task == CHOOSES),
        votes_of(data / QWEN3, 64, lambda task: task != CHOOSES),
    )
    report.bar("Qwen3: the choice is a wide vote", is_wide(setting, plays.recording.num_samples), ">=", 1)
    plays, setting = run(report, "R1", votes_of(data / R1, 80), None)
    report.bar("R1: the choice is a wide vote", is_wide(setting, plays.recording.num_samples), "<=", 0)
    add(
        report,
        f"R1: {WIDE} of {WIDE} at once",
        plays,
        plays.play(Setting(Whole(), WIDE, LeaderChange(), in_flight=WIDE)),
    )


if __name__ == "__main__":
    main()
