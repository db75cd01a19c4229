"""docs/stack_files.md is what the models and registries give."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "stack_files.md"
SCRIPT = PAGE.parent / "_scripts" / "stack_files.py"
COMMAND = [sys.executable, str(SCRIPT)]  # in its own process, since tests register names, too
MOST_WORDS = 1_500


def test_the_page_is_what_the_command_writes() -> None:
    done = subprocess.run(COMMAND, capture_output=True, text=True, encoding="utf-8", check=True)
    page = PAGE.read_text(encoding="utf-8")
    assert page == done.stdout, "docs/stack_files.md lags: make pages"
    assert len(re.findall(r"\S+", page)) < MOST_WORDS
