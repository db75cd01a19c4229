"""The blocks of a page, and commands that run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
WAIT = 300.0  # seconds until a hanging process fails its test
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of code of a page: its language, the name of its file if it has one, and its text."""

    language: str
    title: str
    text: str


def blocks(text: str, language: str = "") -> list[Block]:
    """The blocks of a page's text, of all languages or of one."""
    found = [Block(*parts) for parts in FENCE.findall(text)]
    return [block for block in found if language in ("", block.language)]


def files(text: str) -> dict[str, str]:
    """The blocks of a page that are files, by name."""
    return {block.title: block.text for block in blocks(text) if block.title}


def run(command: str | list[str], folder: Path, python: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run lines of bash, or a command, in a folder with the given Python first on the path; it must succeed."""
    own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    own |= {"PATH": os.pathsep.join([str(python), own["PATH"]]), "OMP_NUM_THREADS": "1"} | environment
    words = ["bash", "-ec", command] if isinstance(command, str) else command
    done = subprocess.run(words, cwd=folder, env=own, capture_output=True, text=True, timeout=WAIT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done
