"""Holds promises of `tune` on random halves of a recording against the other half.

    python -m benchmarks.studies.promises --data FOLDER

Every setting is played on all questions. Then half of the questions, drawn at random, are asked for a promise (at most
two points lost, with a confidence of .9), and the promised setting is held against the other half. Settings that are
fitted to labelled votes are left out: a half must not have fitted them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.report import Report
from benchmarks.studies.real import simulated_recording
from scaffolding_ext.evaluation.logs.read import read_recording
from scaffolding_ext.evaluation.logs.samples import Recording
from scaffolding_ext.evaluation.tune.choose import promised
from scaffolding_ext.evaluation.tune.replay import Replay

SETS = {
    "gpt-4o-mini, GSM8K": ("consol_votes.jsonl.gz", "gsm", 40),
    "R1-Distill-8B, MATH-500": ("r1_distill_8b_math500_80_samples.jsonl.gz", None, 16),
}
MAX_LOSS, CONFIDENCE = 0.02, 0.9
MOST_BROKEN = 0.14  # 10 %, and what 200 draws add by chance


def recordings(data: Path | None, num_simulated: int, rng: np.random.Generator) -> Iterator[tuple[str, Recording]]:
    """The recordings of the folder, by name; simulated votes without one."""
    if data is None:
        yield "simulated", simulated_recording(num_simulated, rng)
        return
    for name, (file, task, num_samples) in SETS.items():
        yield name, read_recording([data / file], task=task, num_samples=num_samples)


@benchmark("studies.promises --data FOLDER")
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of the recordings.")
@size("--num_halves", 200, quick=3, help="Random halves of each recording.", least=2)
@size("--num_simulated", 800, quick=200, help="Questions that are simulated where there is no folder.", least=4)
def main(report: Report, data: Path | None, num_halves: int, num_simulated: int) -> None:
    """Promises on random halves of a recording, held against the other halves."""
    for name, recording in recordings(data, num_simulated, report.rng):
        trial = Replay(recording)
        trial.try_all()
        given, shares, losses = 0, [], []
        for _ in track(range(num_halves), name):
            order = report.rng.permutation(len(recording.questions))
            half, other = np.split(order, [len(order) // 2])
            promise = promised(trial, MAX_LOSS, CONFIDENCE, half.tolist())
            if promise.setting is None:
                continue
            given += 1
            played = trial.played[promise.setting]
            losses.append(float(played.lost[other].mean()))
            shares.append(float(played.costs["decoded"][other].sum() / trial.full.costs["decoded"][other].sum()))
        broken = sum(loss > MAX_LOSS for loss in losses)
        report.share(f"{name}: halves with a promise", given, num_halves)
        report.share(f"{name}: halves whose promise breaks", broken, num_halves)
        report.figure(f"{name}: questions that a promise needs", promise.num_needed)
        if losses:
            report.figure(f"{name}: points lost on the other half", 100 * float(np.mean(losses)), *_spread(losses, 100))
            report.figure(f"{name}: tokens of the other half, share of all", float(np.mean(shares)), *_spread(shares))
        report.bar(f"{name}: share of the halves whose promise breaks", broken / num_halves, "<=", MOST_BROKEN)


def _spread(values: list[float], scale: float = 1.0) -> tuple[float, float]:
    """The middle 95 % of the halves: halves of one recording overlap, so that there is no interval of their mean."""
    low, high = np.quantile(np.array(values) * scale, (0.025, 0.975)).tolist()
    return low, high


if __name__ == "__main__":
    main()
