"""Folder of a run: claimed before any costly work, and continued if a run is resumed."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

from scaffolding_ext.documents import json_text, write_text
from scaffolding_ext.errors import ConfigError, DatasetError, OutputError
from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.evaluation.run.records import Record, each_record, prompt_hash

SAMPLES, SUMMARY, CONFIG = "samples.jsonl", "summary.json", "config.yaml"
LOCK = ".lock"  # of its own, since `samples.jsonl` may be replaced
VOTES = "votes.jsonl"  # of a run with one budget for all votes; its samples.jsonl has the single samples
_FILES = (SAMPLES, VOTES, SUMMARY, CONFIG)


def answers_of(folder: Path) -> Path:
    """Return the file of a run's answers: its votes, if it has any, otherwise its samples."""
    return folder / (VOTES if (folder / VOTES).exists() else SAMPLES)


@contextmanager
def claimed(folder: Path, *, resume: bool = False) -> Iterator[bool]:
    """Hold a folder for one process while the block runs; a killed process loses its hold.

    A new folder is removed again if no record was written.

    Yields:
        True if there is a run to continue.

    Raises:
        OutputError: The folder holds a run and `resume` is not set, or other files of these names; another process runs
            in it; or it cannot be written.
    """
    new_folders = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        goes_on = resume and (folder / SAMPLES).exists()
        lock = _locked(folder, goes_on)
    except OutputError:
        raise
    except OSError as error:
        _remove(new_folders)
        raise OutputError(f"cannot write into {folder} ({error}); name another --output_path") from error
    with lock:
        try:
            yield goes_on
        finally:
            if not goes_on and not (folder / SAMPLES).stat().st_size:
                for name in (*_FILES, LOCK):
                    (folder / name).unlink(missing_ok=True)
                _remove(new_folders)


def _locked(folder: Path, goes_on: bool) -> FileIO:
    """Open and lock the lock file; the process that holds it owns the run."""
    taken = [name for name in _FILES if os.path.lexists(folder / name)]
    if taken and not goes_on:
        going_on = ", or continue the run with --resume" if SAMPLES in taken else ""
        raise OutputError(
            f"{folder} holds {', '.join(taken)}; runs do not mix, with each other or with other files: name another "
            f"--output_path{going_on}"
        )
    lock = FileIO(folder / LOCK, "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / SAMPLES).open("a" if goes_on else "x").close()
    except BlockingIOError:
        lock.close()
        raise OutputError(f"another process runs in {folder}; wait for it, or name another --output_path") from None
    return lock


def _remove(folders: list[Path]) -> None:
    """Remove folders that were created here, innermost first, unless they have files."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return


# Keys that no output depends on: amount, place and speed. A deadline counts, because it ends chains and votes.
_FREE = ("max_parallel_requests", "evaluation", "opentelemetry")
_MISSING = object()


def fingerprint(config: Mapping[str, Any]) -> str:
    """Return the SHA-256 of all keys of a resolved stack that outputs depend on, as `sha256:` and 64 hex digits."""
    return "sha256:" + hashlib.sha256(json.dumps(_bound(config), sort_keys=True).encode()).hexdigest()


def _bound(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in _FREE}


def check_config(config: Mapping[str, Any], of_run: Mapping[str, Any], folder: Path) -> None:
    """Refuse to resume a run of another stack.

    Raises:
        ConfigError: They differ in a key that outputs depend on; `key` is the first such key.
    """
    bound, of_run = _bound(config), _bound(of_run)
    for key in sorted({*bound, *of_run}):
        for path, now, then in _differences(key, bound.get(key, _MISSING), of_run.get(key, _MISSING)):
            raise ConfigError(
                f"is {_shown(now)}, but the run in {folder} has {_shown(then)}, and records of both would mix: "
                "restore it, or name another --output_path",
                path,
            )


def mend(path: Path, *, keeps_failed: bool) -> None:
    """Remove an incomplete last line and the failed requests of a file of records, so that they are run again.

    The file is replaced atomically: a killed process leaves the old one or the new one.

    Raises:
        DatasetError: The file is damaged.
        OutputError: The folder cannot be written; the old file is kept.
    """
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        is_whole = file.read() == b"\n"
    if is_whole and (keeps_failed or all(record.error is None for record in each_record(path))):
        return
    kept = (record for record in each_record(path) if keeps_failed or record.error is None)
    write_text(path, (json_text(record.to_json()) + "\n" for record in kept))


def taken_up(
    path: Path, samples: Sequence[Example], epochs: int, on_record: Callable[[Record], None]
) -> set[tuple[str, int]]:
    """Read the records of a run that is continued.

    Returns:
        The samples that are done.

    Raises:
        DatasetError: The file is damaged, or the question of a record has changed.
        ConfigError: A record has a sample or an epoch that is not in the current run: both may grow, not shrink.
    """
    asked = {sample.id: sample for sample in samples}
    done: set[tuple[str, int]] = set()
    for record in each_record(path):
        sample = asked.get(record.id)
        if sample is None or record.epoch >= epochs:
            raise ConfigError(
                f"leaves out {record.id!r} in epoch {record.epoch}, which the run in {path.parent} has: a continued "
                "run may have more questions and epochs, not fewer",
                "evaluation.limit" if sample is None else "evaluation.epochs",
            )
        if record.prompt_hash != prompt_hash(sample.prompt) or record.target != sample.target:
            raise DatasetError(
                f"the question {record.id!r} has changed since the run in {path.parent} began (its text or right "
                "answer): name another --output_path"
            )
        if (record.id, record.epoch) in done:
            raise DatasetError(f"{path} holds {record.id!r} in epoch {record.epoch} twice; delete one of the lines")
        done.add((record.id, record.epoch))
        on_record(record)
    return done


def _differences(path: str, now: Any, then: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(now, Mapping) and isinstance(then, Mapping):
        for key in dict.fromkeys([*now, *then]):
            yield from _differences(f"{path}.{key}", now.get(key, _MISSING), then.get(key, _MISSING))
    elif now != then:
        yield path, now, then


def _shown(value: Any) -> str:
    return "not there" if value is _MISSING else repr(value)
