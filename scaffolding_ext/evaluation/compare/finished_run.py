"""A finished run as columns: the figures of every record that comparisons need, without texts and traces."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext import plain_yaml
from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.run.records import Record, each_record
from scaffolding_ext.evaluation.run.run_folder import CONFIG, SAMPLES, VOTES, answers_of
from scaffolding_ext.evaluation.run.summary import Summary, summarize

Column = npt.NDArray[np.float64]
UNKNOWN = "unknown"


class Key(NamedTuple):
    """What pairs the records of two runs."""

    id: str
    epoch: int


@dataclass(frozen=True)
class Run:
    """A run's columns, each with an entry a record, in the order of its file.

    Attributes:
        name: What the run is called in tables.
        path: Its file of records; None for records from memory.
        summary: Its figures.
        keys: Which sample and epoch each record is of; none occurs twice.
        questions: Prompt hash and target of each record, which tell whether two runs asked the same.
        columns: `correct` (0 or 1), `decoded`, `computed` (decoded and prefilled tokens) and `seconds`.
        decoded_by_purpose: Decoded tokens under each purpose that occurs.
        exit_reasons: Why each request ended; a failed one's is `"failed: "` and the error's type.
        num_with_event: How many records' traces hold each event.
        vote_sizes: How many samples votes drew that went several rounds.
        config: The stack of the run; empty where no config.yaml lies beside its records.
    """

    name: str
    path: Path | None
    summary: Summary
    keys: list[Key]
    questions: list[tuple[str, str]]
    columns: dict[str, Column]
    decoded_by_purpose: dict[str, Column]
    exit_reasons: list[str]
    num_with_event: Counter[str]
    vote_sizes: Counter[int]
    config: Mapping[str, Any]


def read_run(path: str | os.PathLike[str], name: str | None = None) -> Run:
    """Read a run.

    Args:
        path: A run's folder, or a file of records.
        name: What to call it; None takes the folder's name, or that of a file without its ending.

    Raises:
        DatasetError: There are no records, one is unusable, or a sample and epoch occurs twice.
    """
    place = Path(path)
    samples = answers_of(place) if place.is_dir() else place
    name = name or (place.resolve().name if place.is_dir() else place.name.partition(".")[0])
    return run_of(each_record(samples), name, samples, _config_beside(samples))


def run_of(
    records: Iterable[Record], name: str, path: Path | None = None, config: Mapping[str, Any] | None = None
) -> Run:
    """A run from records in memory; they are read one by one and not kept.

    Args:
        records: The records of one run.
        name: What to call it.
        path: Their file, if there is one.
        config: The stack of the run, if it is known.

    Raises:
        DatasetError: There are no records, or a sample and epoch occurs twice.
    """
    gathered = _Gathered()
    summary = summarize(gathered.through(records))
    place = name if path is None else path
    if not gathered.keys:
        raise DatasetError(f"{place} holds no record; compare takes runs that have some")
    twice = [key for key, times in Counter(gathered.keys).items() if times > 1]
    if twice:
        raise DatasetError(
            f"{place} holds {twice[0].id!r}, epoch {twice[0].epoch}, twice; records pair by both, so each has one"
        )
    return Run(
        name=name,
        path=path,
        summary=summary,
        keys=gathered.keys,
        questions=gathered.questions,
        columns={column: np.array(values, dtype=np.float64) for column, values in gathered.columns.items()},
        decoded_by_purpose=gathered.decoded_by_purpose(),
        exit_reasons=gathered.exit_reasons,
        num_with_event=gathered.num_with_event,
        vote_sizes=gathered.vote_sizes,
        config=config or {},
    )


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths, without endings of files, that tell them apart."""
    parts = [
        (path if path.is_dir() or path.name not in (SAMPLES, VOTES) else path.parent).resolve().parts for path in paths
    ]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]).removesuffix(".gz").removesuffix(".jsonl") for part in parts]
        if len(set(names)) == len(names):
            return names
    raise DatasetError(f"a run is given twice: {', '.join(map(str, paths))}; compare different ones")


class _Gathered:
    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.questions: list[tuple[str, str]] = []
        self.columns: dict[str, list[float]] = {name: [] for name in ("correct", "decoded", "computed", "seconds")}
        self.exit_reasons: list[str] = []
        self.num_with_event: Counter[str] = Counter()
        self.vote_sizes: Counter[int] = Counter()
        self._decoded: dict[str, dict[int, int]] = {}

    def through(self, records: Iterable[Record]) -> Iterator[Record]:
        """Pass records through, and keep the columns."""
        for record in records:
            self._add(record)
            yield record

    def decoded_by_purpose(self) -> dict[str, Column]:
        columns = {}
        for purpose, found in self._decoded.items():
            columns[purpose] = np.zeros(len(self.keys))
            columns[purpose][list(found)] = list(found.values())
        return columns

    def _add(self, record: Record) -> None:
        total = record.ledger["total"]
        for purpose, counts in record.ledger["by_purpose"].items():
            self._decoded.setdefault(purpose, {})[len(self.keys)] = counts["decoded"]
        self.keys.append(Key(record.id, record.epoch))
        self.questions.append((record.prompt_hash, record.target))
        figures = (record.correct, total["decoded"], total["decoded"] + total["prefilled"], record.seconds["total"])
        for column, value in zip(self.columns.values(), figures, strict=True):
            column.append(value)
        self.exit_reasons.append(f"failed: {record.error.type}" if record.error else record.exit_reason or UNKNOWN)
        self.num_with_event.update({event["event"] for event in record.trace})
        self.vote_sizes.update(
            event["num_samples"]
            for event in record.trace
            if event["event"] == "vote" and event.get("num_rounds", 1) > 1
        )


def _config_beside(samples: Path) -> Mapping[str, Any]:
    path = samples.parent / CONFIG
    if samples.name not in (SAMPLES, VOTES) or not path.exists():
        return {}
    config = plain_yaml.read(path)
    return config if isinstance(config, Mapping) else {}
