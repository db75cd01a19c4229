"""What `tune` finds on recorded samples of real models, and which default of a vote is best over all of them.

    python -m benchmarks.studies.tuned --data FOLDER

FOLDER holds the recordings (without one, votes are simulated): `epoch_votes.jsonl.gz`, `consol_votes.jsonl.gz` and
`r1_distill_8b_math500_80_samples.jsonl.gz`. For each set: the choice of `tune`, judged on questions (or runs) that did
not choose it, beside Adaptive-Consistency and doubling chosen in the same way, and beside the default. Then settings of
`LeaderChange` are played on all sets: the default is the cheapest that loses at most 0.2 points on each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np

from benchmarks._lib.command import benchmark, size
from benchmarks._lib.report import Report
from benchmarks.studies.vote_replay import simulated_recording
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.evaluation.recordings.read import read_recording
from scaffolding_ext.evaluation.recordings.recording import Recording
from scaffolding_ext.evaluation.trial.chains import Whole
from scaffolding_ext.evaluation.trial.choice import Cheapest
from scaffolding_ext.evaluation.trial.plays import Trial
from scaffolding_ext.evaluation.trial.space import Setting

SETS = {
    "Epoch AI, OTIS Mock AIME": ("epoch_votes.jsonl.gz", "OTIS", 8),
    "Epoch AI, GPQA Diamond": ("epoch_votes.jsonl.gz", "GPQA", 8),
    "gpt-4o-mini, GSM8K": ("consol_votes.jsonl.gz", "gsm", 40),
    "R1-Distill-8B, MATH-500": ("r1_distill_8b_math500_80_samples.jsonl.gz", None, 16),
}
CHOSEN_ALIKE = ("LeaderChange", "Adaptive-Consistency", "doubling")
MAX_LOSS = 0.003
DEFAULT_LOSS = 0.205  # points: 0.2, rounded to two digits
GRID = [
    LeaderChange(miss=miss, concentration=concentration, leap=leap)
    for concentration in (0.5, 1.0, 2.0)
    for leap in (1.0, 2.0)
    for miss in (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)
]


def recordings(data: Path | None, num_simulated: int, rng: np.random.Generator) -> Iterator[tuple[str, Recording]]:
    """The recordings of the folder, by name; simulated votes without one."""
    if data is None:
        yield "simulated", simulated_recording(num_simulated, rng)
        return
    for name, (file, task, num_samples) in SETS.items():
        yield name, read_recording([data / file], task=task, num_samples=num_samples)


@benchmark("studies.tuned --data FOLDER")
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of the recordings.")
@size("--num_simulated", 100, quick=12, help="Questions that are simulated where there is no folder.", least=2)
def main(report: Report, data: Path | None, num_simulated: int) -> None:
    """What `tune` finds on recorded samples of real models, and which default of a vote is best."""
    goal = Cheapest(MAX_LOSS)
    shares, losses = [], []
    for name, recording in recordings(data, num_simulated, report.rng):
        num_samples = recording.num_samples
        trial = Trial(recording)
        trial.try_all()
        named = trial.baselines(goal) | {
            f"{each}, chosen": trial.judged(goal, {each: trial.lists[each]}) for each in CHOSEN_ALIKE
        }
        named |= {
            "default": trial.play(Setting(Whole(), num_samples, LeaderChange())),
            "chosen": trial.judged(goal),
        }
        for row in trial.rows(named):
            report.figure(f"{name}: {row.name}: tokens, share of all", *row.cost_share)
            report.figure(f"{name}: {row.name}: points", *row.points)
            report.figure(f"{name}: {row.name}: rounds", row.rounds)
        played = [trial.play(Setting(Whole(), num_samples, rule)) for rule in GRID]
        full = trial.full.costs["decoded"].sum()
        shares.append([float(each.costs["decoded"].sum() / full) for each in played])
        losses.append([100 * float((trial.full.right - each.right).mean()) for each in played])
    allowed = (np.array(losses) <= DEFAULT_LOSS).all(axis=0)
    means = np.where(allowed, np.mean(shares, axis=0), np.inf)
    best = int(np.argmin(means))
    for field in ("miss", "concentration", "leap"):
        report.figure(f"best default: {field}", getattr(GRID[best], field))
    report.figure("best default: tokens, share of all, mean over the sets", float(means[best]))


if __name__ == "__main__":
    main()
