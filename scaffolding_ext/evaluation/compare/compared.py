"""Compare several runs: each with the first, and the full records of their common samples."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scaffolding_ext.documents import plain
from scaffolding_ext.evaluation.compare.finished_run import FinishedRun, Key, distinct_names, read_run
from scaffolding_ext.evaluation.compare.paired import Comparison, Point, compare, paired
from scaffolding_ext.evaluation.run.records import Record, each_record


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
