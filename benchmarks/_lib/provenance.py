"""The origin of a result: the commit, every option, and the machine."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parents[2]
PLACE = click.Path(path_type=Path)  # an option of where something is kept or drawn
PAGES = (":(exclude,glob)benchmarks/results/**", ":(exclude,glob)docs/results/**", ":(exclude,glob)**/*.md")
UNTOLD = ("as_json",)


def setting_of(context: click.Context) -> dict[str, Any]:
    """The setting of a run: its options, as they hold, and where and on what it runs.

    A folder that is read stands by its name; places where something is written are left out.
    """
    setting: dict[str, Any] = {"commit": commit()}
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.type is not PLACE and parameter.name not in UNTOLD:
            setting[str(parameter.name)] = value.name if isinstance(value, Path) else value
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    return setting | machine


def commit(folder: Path = ROOT) -> str | None:
    """The commit that is checked out, with `-dirty` where tracked files differ from it; None outside git.

    Pages and other results may differ: no study reads them.
    """

    def git(*arguments: str) -> str:
        run = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True)
        return run.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + (
            "-dirty" if git("status", "--porcelain", "--untracked-files=no", "--", ".", *PAGES) else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return None
