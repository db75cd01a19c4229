"""The records of some samples in full, from each of several runs: what a report shows and a trace export holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scaffolding_ext.evaluation.compare.comparison import paired
from scaffolding_ext.evaluation.compare.finished_run import Key, Run
from scaffolding_ext.evaluation.run.records import Record, each_record


class KeptSample(NamedTuple):
    """A sample and its record in each run."""

    key: Key
    records: list[Record]


def kept_samples(runs: Sequence[Run], num_samples: int) -> list[KeptSample]:
    """Read the full records of some samples that all runs have.

    Args:
        runs: The runs.
        num_samples: How many at most; those on which runs disagree go first, else the first run's order holds.

    Returns:
        The samples, in the order of the first run's file.

    Raises:
        DatasetError: The runs have fewer than two questions in common, or a file cannot be read again.
        ValueError: A run was not read from a file.
    """
    pairs = paired(runs)
    right = [run.columns["correct"][rows] for run, rows in zip(runs, pairs.rows, strict=True)]
    agreeing = [len({column[number] for column in right}) == 1 for number in range(len(pairs.keys))]
    chosen = sorted(sorted(range(len(pairs.keys)), key=agreeing.__getitem__)[:num_samples])
    wanted = {pairs.keys[number] for number in chosen}
    found = []
    for run in runs:
        if run.path is None:
            raise ValueError(f"{run.name} was not read from a file, so that there is none to read its samples from")
        records = {}
        for record in each_record(run.path):
            key = Key(record.id, record.epoch)
            if key in wanted:
                records[key] = record
        found.append(records)
    return [KeptSample(pairs.keys[number], [own[pairs.keys[number]] for own in found]) for number in chosen]
