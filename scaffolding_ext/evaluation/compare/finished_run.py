"""A finished run as columns: the figures that comparisons need of every record."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scaffolding_ext import plain_yaml
from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.run.records import each_record
from scaffolding_ext.evaluation.run.run_folder import CONFIG, SAMPLES, VOTES, answers_of
from scaffolding_ext.evaluation.run.run_stats import OUTCOMES, Column, RunStats
from scaffolding_ext.evaluation.run.summary import Summary, summary_of


class Key(NamedTuple):
    """Key that pairs records of two runs."""

    id: str
    epoch: int


@dataclass(frozen=True)
class FinishedRun:
    """A run as columns with an entry per record, in the order of its file.

    Attributes:
        path: Its file of records.
        columns: `question` (number of the record's question), `epoch`, `correct` (0 or 1), `decoded`, `computed`
            (decoded and prefilled tokens) and `seconds`.
        config: The stack of the run; empty if its folder has no config.yaml.
    """

    name: str
    path: Path
    summary: Summary
    tally: RunStats
    columns: dict[str, Column]
    config: Mapping[str, Any]

    @cached_property
    def ids(self) -> list[str]:
        return list(self.tally.questions)

    def key(self, row: int) -> Key:
        return Key(self.ids[int(self.columns["question"][row])], int(self.columns["epoch"][row]))


def read_run(path: str | os.PathLike[str], name: str | None = None) -> FinishedRun:
    """Read a run from its records.

    Args:
        path: A run's folder, or a file of records.
        name: Its name; None takes that of the folder, or of the file without its extension.

    Raises:
        DatasetError: There are no records, one is unusable, or a sample and epoch occurs twice.
    """
    place = Path(path)
    samples = answers_of(place) if place.is_dir() else place
    name = name or (place.resolve().name if place.is_dir() else place.name.partition(".")[0])
    tally = RunStats()
    for record in each_record(samples):
        tally.add(record)
    if not tally.num_samples:
        raise DatasetError(f"{samples} has no records; compare needs at least one")
    columns = tally.columns()
    columns["correct"] = (columns["outcome"] == OUTCOMES.index("correct")).astype(np.float64)
    run = FinishedRun(name, samples, summary_of(tally), tally, columns, _config_beside(samples))
    order = np.lexsort((columns["epoch"], columns["question"]))
    keys = np.column_stack((columns["question"], columns["epoch"]))[order]
    twice = np.flatnonzero((keys[1:] == keys[:-1]).all(axis=1))
    if len(twice):
        key = run.key(order[twice[0]])
        raise DatasetError(
            f"{samples} has {key.id!r}, epoch {key.epoch}, twice; records are paired by both, so they must be unique"
        )
    return run


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths, without extensions, that distinguish them."""
    parts = [
        (path if path.is_dir() or path.name not in (SAMPLES, VOTES) else path.parent).resolve().parts for path in paths
    ]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]).removesuffix(".gz").removesuffix(".jsonl") for part in parts]
        if len(set(names)) == len(names):
            return names
    raise DatasetError(f"a run is given twice: {', '.join(map(str, paths))}; compare different ones")


def _config_beside(samples: Path) -> Mapping[str, Any]:
    path = samples.parent / CONFIG
    if samples.name not in (SAMPLES, VOTES) or not path.exists():
        return {}
    config = plain_yaml.read(path)
    return config if isinstance(config, Mapping) else {}
