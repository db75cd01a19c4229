"""Compare several runs: each with the first, sweeps among them, and the full records of their common samples."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scaffolding_ext.documents import plain
from scaffolding_ext.evaluation.compare.finished_run import FinishedRun, Key, distinct_names, read_run
from scaffolding_ext.evaluation.compare.paired import Comparison, Point, compare, paired
from scaffolding_ext.evaluation.compare.sweeps import Sweep, sweeps_of
from scaffolding_ext.evaluation.run.load_test import requests_of
from scaffolding_ext.evaluation.run.records import Record, each_record
from scaffolding_ext.evaluation.traffic.served_requests import TrafficFigures, traffic_figures
from scaffolding_ext.stats.intervals import Estimate, paired_bootstrap


class Compared(NamedTuple):
    """Runs and their comparisons.

    Attributes:
        runs: The baseline first.
        comparisons: Of each other run with the baseline.
        points: Accuracy and tokens of each run, on the samples that it shares with the first.
        sweeps: Runs of one controller with different knobs.
        loads: Runs whose requests arrived by the clock.
    """

    runs: list[FinishedRun]
    comparisons: list[Comparison]
    points: list[Point]
    sweeps: list[Sweep]
    loads: dict[str, UnderLoad]

    @property
    def second_models(self) -> list[SecondModel]:
        num_models = {run.name: len(_models(run)) for run in self.runs}
        least = num_models[self.runs[0].name]
        return [SecondModel.of(one) for one in self.comparisons if least and num_models[one.run] > least]

    @property
    def warnings(self) -> list[str]:
        """Warnings of all comparisons, without repeats."""
        return list(dict.fromkeys(warning for one in self.comparisons for warning in one.warnings))

    def to_json(self) -> dict[str, Any]:
        return {
            "runs": {run.name: run.summary.to_json() for run in self.runs},
            "comparisons": plain(self.comparisons),
            "points": plain(self.points),
            "sweeps": [sweep.to_json() for sweep in self.sweeps],
            "loads": plain(self.loads),
            "second_models": [each._asdict() for each in self.second_models],
        }


class SecondModel(NamedTuple):
    """A run with an additional model, compared with the first run.

    Attributes:
        pays: It is more accurate and no slower, or faster and not worse by more than the margin, each with its whole
            95 % interval.
    """

    run: str
    points: Estimate
    seconds_ratio: float | None
    pays: bool

    @classmethod
    def of(cls, one: Comparison) -> SecondModel:
        gain, ratio = one.accuracy_difference, one.seconds_ratio
        pays = ratio is not None and ((gain.low > 0 and ratio <= 1) or (gain.low > -one.margin and ratio < 1))
        return cls(one.run, Estimate(*(100 * each for each in gain)), ratio, pays)


def _models(run: FinishedRun) -> set[str]:
    workers = (run.config.get("workers") or {}).values()
    named = ((worker.get("args") or {}).get("model") for worker in workers)
    return {str(model) for model in named if model is not None}


def compare_runs(paths: Sequence[Path], *, seed: int = 0, margin: float = 0.02) -> Compared:
    """Read runs, and compare each with the first.

    Args:
        paths: Folders or files of records, at least two.
        margin: Acceptable loss of accuracy, as a share.

    Raises:
        DatasetError: A run cannot be read, is given twice, or shares fewer than two questions with the first.
    """
    runs = [read_run(path, name) for path, name in zip(paths, distinct_names(paths), strict=True)]
    comparisons = [compare(runs[0], run, seed=seed, margin=margin) for run in runs[1:]]
    points = [comparisons[0].baseline_point, *(one.run_point for one in comparisons)]
    return Compared(runs, comparisons, points, sweeps_of(runs, points, seed), under_load(runs, seed))


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
        ValueError: A run was not read from a file.
    """
    pairs = paired(runs)
    right = [run.columns["correct"][rows] for run, rows in zip(runs, pairs.rows, strict=True)]
    agreeing = np.all([column == right[0] for column in right], axis=0)
    keys = [pairs.key(number) for number in np.sort(np.argsort(agreeing, kind="stable")[:num_samples])]
    wanted = set(keys)
    found = []
    for run in runs:
        if run.path is None:
            raise ValueError(
                f"{run.name} was not read from a file, so its records are unavailable: read the run from its folder"
            )
        found.append(_records_of(run.path, wanted))
    return [PairedSample(key, [own[key] for own in found]) for key in keys]


def _records_of(path: Path, wanted: Collection[Key]) -> dict[Key, Record]:
    """Read the wanted records of a file; other lines in the format of `eval` are not parsed."""
    heads = {json.dumps({"id": key.id, "epoch": key.epoch})[:-1].encode(): key for key in wanted}
    found: dict[Key, Record] = {}
    if path.suffix != ".gz":
        with path.open("rb") as file:
            for line in file:
                key = heads.get(line[: line.find(b', "prompt_hash": ')])
                if key is not None:
                    found[key] = Record.from_json(json.loads(line))
    if len(found) < len(heads):
        found = {Key(record.id, record.epoch): record for record in each_record(path)}
    return found


class UnderLoad(NamedTuple):
    """A run under load.

    Attributes:
        more_in_time: Share of the samples that only it answers in time, minus those that only the first run does, with
            the 95 % interval of resampled questions; None for the first run, or without an objective.
    """

    figures: TrafficFigures
    more_in_time: Estimate | None


def under_load(runs: Sequence[FinishedRun], seed: int) -> dict[str, UnderLoad]:
    """Return the runs whose stack sets an arrival rate, by name."""
    found: dict[str, UnderLoad] = {}
    for run in runs:
        if (run.config.get("evaluation") or {}).get("arrival_rate") is None:
            continue
        figures = traffic_figures(requests_of(run.columns))
        found[run.name] = UnderLoad(figures, None if run is runs[0] else _more_in_time(runs[0], run, seed))
    return found


def _more_in_time(baseline: FinishedRun, run: FinishedRun, seed: int) -> Estimate | None:
    pairs = paired([baseline, run])
    columns = [
        {name: column[rows] for name, column in one.columns.items()}
        for one, rows in zip((baseline, run), pairs.rows, strict=True)
    ]
    if not all(each["is_wanted"].any() for each in columns):
        return None
    before, now = (each["is_in_time"].astype(np.float64) for each in columns)
    return paired_bootstrap(now, before, pairs.question_of, rng=np.random.default_rng(seed))
