"""Votes that roll beside votes in rounds and all samples at once: tokens and time.

    python -m benchmarks.studies.rolling --data FOLDER --json

The class's default rule on every recording, with 2 and more samples in flight, by `tune`'s replay. Its time is the
vote's longest path in tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks._lib.command import benchmark, recorded
from benchmarks._lib.report import Report
from benchmarks.studies.real import recordings
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.evaluation.tune.endings import Whole
from scaffolding_ext.evaluation.tune.replay import Replay
from scaffolding_ext.evaluation.tune.space import Setting

ROUNDS = "rounds"
IN_FLIGHT = {8: (2, 4), 16: (2, 4, 8), 40: (4, 8, 16), 64: (4, 8, 16)}  # by the samples of a recording


@benchmark("studies.rolling --data FOLDER")
@recorded
def main(report: Report, data: Path) -> None:
    """Votes that roll beside votes in rounds and all samples at once."""
    for name, recording in recordings(data):
        trial, number = Replay(recording), recording.num_samples
        most = IN_FLIGHT[number][-1]
        settings: dict[str, dict[str, Any]] = {ROUNDS: {}}
        settings |= {f"{each} in flight": {"in_flight": each} for each in IN_FLIGHT[number]}
        settings[f"{most} in flight, by index"] = {"in_flight": most, "order": "index"}
        for way, given in settings.items():
            own, about = trial.play(Setting(Whole(), number, LeaderChange(), **given)), f"{name}: {way}"
            report.difference(f"{about}: points", own.right, trial.full.right, trial.groups, scale=100)
            for what, cost in (("tokens", "decoded"), ("longest path", "critical")):
                report.ratio(f"{about}: {what}, share of all", own.costs[cost], trial.full.costs[cost], trial.groups)  # type: ignore[index]


if __name__ == "__main__":
    main()
