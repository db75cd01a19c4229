"""Writes today's install command onto every page (`make pages`), after scaffolding_ext/errors.py changed."""

from __future__ import annotations

import re
from pathlib import Path

from scaffolding_ext.errors import install_command

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"pip install '(?:\.|scaffolding-ext)(?:\[([\w, -]+)])?'")


def pages() -> list[Path]:
    """The pages that a user reads."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def with_todays_commands(text: str) -> str:
    """A page's text with each command that installs the package as it works today."""
    return COMMAND.sub(lambda found: install_command(*re.findall(r"[\w-]+", found[1] or "")), text)


if __name__ == "__main__":
    for page in pages():
        text = page.read_text(encoding="utf-8")
        page.write_text(with_todays_commands(text), encoding="utf-8")
