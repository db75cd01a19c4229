"""The folder of a run: claimed before anything costly is done, and given back where nothing came of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scaffolding_ext.errors import OutputError

SAMPLES, SUMMARY, CONFIG = "samples.jsonl", "summary.json", "config.yaml"


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Have a folder for one run alone.

    The run has it that made the samples file. At the end it stays where a record was written; else it is as it was.

    Raises:
        OutputError: It holds a run, or files of those names that are another's, or cannot be written into.
    """
    new_folders = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    samples = folder / SAMPLES
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = [name for name in (SAMPLES, SUMMARY, CONFIG) if os.path.lexists(folder / name)] or _made(samples)
    except OSError as error:
        _remove(new_folders)
        raise OutputError(f"cannot write into {folder} ({error}); name another --output_path") from error
    if taken:
        raise OutputError(
            f"{folder} holds {', '.join(taken)}; runs do not mix, with each other or with other files: name another "
            "--output_path"
        )
    try:
        yield
    finally:
        if not samples.stat().st_size:
            for name in (SAMPLES, SUMMARY, CONFIG):
                (folder / name).unlink(missing_ok=True)
            _remove(new_folders)


def _made(samples: Path) -> list[str]:
    """Make the samples file; its name, where another run was quicker."""
    try:
        samples.open("xb").close()
    except FileExistsError:
        return [samples.name]
    return []


def _remove(folders: list[Path]) -> None:
    """Remove folders that were made here, from the inmost out, as far as they are empty."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return
