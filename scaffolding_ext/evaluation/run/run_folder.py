"""The folder of a run: claimed before anything costly is done, and removed again where no record was written."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from scaffolding_ext.errors import OutputError

SAMPLES, SUMMARY, CONFIG = "samples.jsonl", "summary.json", "config.yaml"
VOTES = "votes.jsonl"  # of a run with one budget for all votes, whose samples.jsonl holds their single samples
_FILES = (SAMPLES, VOTES, SUMMARY, CONFIG)


def answers_of(folder: Path) -> Path:
    """The file of a run's answers, a record each: the votes, where it has some of its own, else the samples."""
    return folder / (VOTES if (folder / VOTES).exists() else SAMPLES)


@contextmanager
def claimed(folder: Path, *, resume: bool = False) -> Iterator[bool]:
    """Hold a folder for one process alone while the block runs; a killed process loses its hold.

    A new folder is removed again where no record was written.

    Args:
        folder: It is made if it does not exist.
        resume: Whether to continue a run that the folder holds.

    Yields:
        Whether there is a run to continue.

    Raises:
        OutputError: The folder holds a run and `resume` is not set, or other files of these names; another process runs
            in it; or it cannot be written.
    """
    new_folders = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        goes_on = resume and (folder / SAMPLES).exists()
        samples = _locked(folder, goes_on)
    except OutputError:
        raise
    except OSError as error:
        _remove(new_folders)
        raise OutputError(f"cannot write into {folder} ({error}); name another --output_path") from error
    with samples:
        try:
            yield goes_on
        finally:
            if not goes_on and not (folder / SAMPLES).stat().st_size:
                for name in _FILES:
                    (folder / name).unlink(missing_ok=True)
                _remove(new_folders)


def _locked(folder: Path, goes_on: bool) -> FileIO:
    """The samples file, open and locked: the process has the run that holds it."""
    taken = [name for name in _FILES if os.path.lexists(folder / name)]
    if taken and not goes_on:
        raise _occupied(folder, taken)
    try:
        samples = FileIO(folder / SAMPLES, "a" if goes_on else "x")
    except FileExistsError:  # another process was quicker
        raise _occupied(folder, [SAMPLES]) from None
    try:
        fcntl.flock(samples, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        samples.close()
        raise OutputError(f"another process runs in {folder}; let it end, or name another --output_path") from None
    return samples


def _occupied(folder: Path, taken: list[str]) -> OutputError:
    going_on = ", or go on with the run by --resume" if SAMPLES in taken else ""
    return OutputError(
        f"{folder} holds {', '.join(taken)}; runs do not mix, with each other or with other files: name another "
        f"--output_path{going_on}"
    )


def _remove(folders: list[Path]) -> None:
    """Remove folders that were made here, from the inmost out, as far as they are empty."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return
