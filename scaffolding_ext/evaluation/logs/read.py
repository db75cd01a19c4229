"""Read logs, whose format is recognized by their name and first row."""

from __future__ import annotations

import collections
import functools
import hashlib
import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scaffolding_ext.documents import fingerprint, parse_json
from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.logs.folder import read_run
from scaffolding_ext.evaluation.logs.graded import recording_of
from scaffolding_ext.evaluation.logs.inspect_logs import read_inspect
from scaffolding_ext.evaluation.logs.lighteval_logs import read_lighteval
from scaffolding_ext.evaluation.logs.lm_eval_logs import FIELDS, read_lm_eval
from scaffolding_ext.evaluation.logs.plain import read_plain
from scaffolding_ext.evaluation.logs.samples import Log, Recording, merged
from scaffolding_ext.evaluation.run.jsonl import read_csv, read_rows
from scaffolding_ext.evaluation.run.run_folder import SAMPLES

_KINDS = (
    "give a run folder, a .jsonl, .jsonl.gz or .csv file, the samples_*.jsonl of lm-evaluation-harness, an .eval or "
    ".json log of inspect_ai, or the details_*.parquet of lighteval"
)
_LM_EVAL = re.compile(r"samples_(.+?)_\d{4}-\d{2}-\d{2}T.*\.jsonl")


def read_recording(
    paths: Sequence[str | os.PathLike[str]],
    *,
    task: str | None = None,
    num_samples: int | None = None,
) -> Recording:
    """Read and grade the samples of one or more logs, merging samples of the same question and run.

    Args:
        paths: Files and folders; see `_KINDS`.
        task: Take only questions of tasks whose name contains it, ignoring case.
        num_samples: See `recording_of`.

    Raises:
        DatasetError: A path is not a log, a row is wrong, or nothing is left. It names file and line.
        MissingDependencyError: The reader of such a log is not installed.
    """
    logs = [read_log(path) for path in paths]
    first_of: dict[str, str] = {}
    for log in logs:
        if (twin := first_of.setdefault(log.fingerprint, log.source)) is not log.source:
            raise DatasetError(
                f"{log.source}: is the same log as {twin}, so its samples would count twice; give one of them"
            )
    every = [question for log in logs for question in log.questions]
    if not every:
        raise DatasetError(f"{', '.join(log.source for log in logs)}: has no finished sample: did its run fail?")
    wanted = [each for each in every if (task or "").lower() in each.task.lower()]
    if not wanted:
        tasks = sorted({each.task for each in every} - {""})
        raise DatasetError(f"no question has the task {task!r}; the tasks are {', '.join(tasks) or 'not named'}")
    places = collections.Counter((each.run, each.task, each.id) for each in wanted if len(each.samples) > 1)
    joined = sum(number > 1 for number in places.values())  # lines of a single sample are meant to be merged
    together = merged(wanted, ", ".join(log.source for log in logs))

    def common(name: str) -> Any:
        first = getattr(logs[0], name)
        return first if all(getattr(log, name) == first for log in logs) else None

    notes = list(dict.fromkeys(log.note for log in logs if log.note is not None))
    if joined:
        notes.append(
            f"{joined:,} questions are on several lines, whose samples are merged: give each line a `run` "
            "if they are of different models or settings."
        )
    return recording_of(
        together,
        [log.source for log in logs],
        _fingerprint_of([log.fingerprint for log in logs]),
        num_samples=num_samples,
        notes=notes,
        **{name: common(name) for name in ("model", "sampling", "dataset", "stack")},
    )


def read_log(path: str | os.PathLike[str]) -> Log:
    """Read one file or folder; raises like `read_recording`."""
    file = Path(path)
    if file.is_dir():
        if not (file / SAMPLES).exists():
            raise DatasetError(f"{file}: the folder has no {SAMPLES}; {_KINDS}")
        file = file / SAMPLES
    if not file.exists():
        raise DatasetError(f"{file}: there is no such file; {_KINDS}")
    own = fingerprint(file)
    name = str(file)
    if file.suffix == ".eval" or (file.suffix == ".json" and not name.endswith(".jsonl")):
        return read_inspect(file, own)
    if file.suffix == ".parquet":
        return read_lighteval(file, own)
    if file.suffix == ".csv":
        return read_plain(read_csv(file, "log"), name, own)
    if not name.endswith((".jsonl", ".jsonl.gz")):
        raise DatasetError(f"{file}: unknown kind of file; {_KINDS}")
    rows = read_rows(file, "log", functools.partial(parse_json, keeps_infinity=True))  # of a perplexity
    first = next(rows, None)
    keys = set() if first is None else first.value.keys()
    if {"ledger", "epoch"} <= keys:
        return read_run(file, own)
    whole = rows if first is None else itertools.chain([first], rows)
    if keys >= FIELDS:
        named = _LM_EVAL.fullmatch(file.name)
        task = file.stem.removeprefix("samples_") if named is None else named[1]
        return read_lm_eval(whole, name, own, file.resolve().parent.name, task)
    return read_plain(whole, name, own)


def _fingerprint_of(fingerprints: Sequence[str]) -> str:
    if len(fingerprints) == 1:
        return fingerprints[0]
    return "sha256:" + hashlib.sha256("\n".join(fingerprints).encode()).hexdigest()
