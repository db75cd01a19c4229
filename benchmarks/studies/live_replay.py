"""Runs three points of the embedded model's frontier for real, beside what their replay said.

    python -m benchmarks.studies.live_replay --store FOLDER --json

Whole votes are recorded with their samples (`keep_samples`). `tune` plays every rule on them, and three settings of the
frontier are written as stacks and run on the same problems with the same seed. Live accuracy and tokens should lie
within the replay's intervals. A sample that both runs drew should have the same text, since its seed is the same.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

from benchmarks._lib.command import benchmark, size, stored
from benchmarks._lib.report import Report
from benchmarks._lib.runs import run_in_folder
from scaffolding_ext.evaluation.logs.read import read_recording
from scaffolding_ext.evaluation.run.records import Record, each_record
from scaffolding_ext.evaluation.run.run_folder import SAMPLES
from scaffolding_ext.evaluation.tune.replay import Replay
from scaffolding_ext.evaluation.tune.space import Setting
from scaffolding_ext.evaluation.tune.stack_file import stack_of
from scaffolding_ext.evaluation.tune.table import TableRow, rows_of
from scaffolding_ext.stack.config import StackConfig
from scaffolding_ext.stack.load import load_config

NUM_POINTS = 3
LEAST_EQUAL = 0.99  # of the texts: near-ties of the floating point depend on what runs side by side
LEAST_SHARE, MOST_SHARE = 0.15, 0.9  # of the tokens, between which points are taken


def ran(config: StackConfig, folder: Path) -> list[Record]:
    """The records of a stack, in the order of their problems; what the folder has of them is not run again."""
    run_in_folder(config, folder)
    return sorted(each_record(folder / SAMPLES), key=lambda record: record.id)


def frontier_points(trial: Replay) -> list[Setting]:
    """Settings that are more accurate than every cheaper one: the cheapest, the dearest, and one between.

    Left out are votes of the first to finish, since their samples depend on the engine; fitted rules, which are
    replayed as other questions fitted them; and single samples, whose seeds are not those of a vote.
    """
    full = float(trial.full.costs[trial.cost].sum())
    shares = {
        setting: float(trial.played[setting].costs[trial.cost].sum()) / full
        for own in trial.lists.values()
        for setting in own
        if setting.order != "arrival" and not setting.is_fitted and setting.num_samples > 1
    }
    kept, best = [], -1.0
    for setting in sorted(shares, key=lambda each: shares[each]):
        right = float(trial.played[setting].right.mean())
        if right > best and LEAST_SHARE <= shares[setting] <= MOST_SHARE:
            best = right
            kept.append(setting)
    return [kept[place] for place in np.unique(np.linspace(0, len(kept) - 1, NUM_POINTS).round().astype(int)).tolist()]


def equal_texts(live: Sequence[Record], recorded: Sequence[Record]) -> tuple[int, int]:
    """Samples of the live runs whose text is the recorded one, and samples in all."""
    pairs = [
        (one["text"], other["text"])
        for mine, theirs in zip(live, recorded, strict=True)
        for one, other in zip(mine.samples or (), theirs.samples or (), strict=False)
    ]
    return sum(one == other for one, other in pairs), len(pairs)


def add_point(
    report: Report, name: str, row: TableRow, trial: Replay, live: Sequence[Record], recorded: Sequence[Record]
) -> None:
    """The figures of one point, and the bars that hold them against its replay."""
    right = np.array([bool(record.correct) for record in live], dtype=float)
    tokens = np.array([record.ledger["total"]["decoded"] for record in live], dtype=float)
    whole = np.array([record.ledger["total"]["decoded"] for record in recorded], dtype=float)
    whole_right = np.array([bool(record.correct) for record in recorded], dtype=float)
    share = report.ratio(f"{name}: live: tokens, share of all", tokens, whole).value
    points = report.difference(f"{name}: live: points over the whole vote", right, whole_right, scale=100).value
    report.figure(f"{name}: replay: tokens, share of all", *row.cost_share)
    report.figure(f"{name}: replay: points over the whole vote", *row.points)
    num_equal, num_texts = equal_texts(live, recorded)
    report.share(f"{name}: texts that are equal", num_equal, num_texts)
    report.bar(f"{name}: live tokens over the replay's lower end", share - row.cost_share.low, ">=", 0)
    report.bar(f"{name}: live tokens over the replay's upper end", share - row.cost_share.high, "<=", 0)
    report.bar(f"{name}: live points over the replay's lower end", points - row.points.low, ">=", 0)
    report.bar(f"{name}: live points over the replay's upper end", points - row.points.high, "<=", 0)
    report.bar(f"{name}: texts that are equal, share", num_equal / num_texts, ">=", LEAST_EQUAL)


@benchmark("studies.live_replay --store FOLDER")
@click.option("--model", default="tinylm/target", show_default=True, help="Embedded model.")
@size("--num_problems", 200, quick=8, help="Problems.", least=5)
@size("--num_samples", 8, quick=4, help="Samples of a whole vote.", least=2)
@size("--max_tokens", 1200, quick=200, help="Of a sample.")
@stored
def main(report: Report, model: str, num_problems: int, num_samples: int, max_tokens: int, store: Path | None) -> None:
    """Three points of the frontier, live and replayed."""
    overrides = {
        "workers.generation.args.model": model,
        "seed": report.seed,
        "dataset.seed": report.seed,
        "dataset.num_samples": num_problems,
        "controller.args.default_sample_num": num_samples,
        "controller.args.allocation": "null",
        "controller.args.generation_controller.args.sampling_params.max_tokens": max_tokens,
        "evaluation.keep_samples": "true",
    }
    base = load_config("configs:majority_vote", [f"{key}={value}" for key, value in overrides.items()])
    with tempfile.TemporaryDirectory() as folder:
        root = store or Path(folder)
        recorded = ran(base, root / "whole")
        trial = Replay(read_recording([root / "whole"], num_samples=num_samples), seed=report.seed)
        trial.try_all()
        for number, setting in enumerate(frontier_points(trial), 1):
            row = rows_of(trial, {str(setting): trial.played[setting]})[0]
            config = stack_of(setting, row, trial, promise=None, base=base)
            live = ran(config, root / f"point {number}")
            add_point(report, f"point {number}", row, trial, live, recorded)


if __name__ == "__main__":
    main()
