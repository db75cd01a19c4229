"""A user's code type-checks against the public API, and mypy finds what is wrong in it.

`make check` does the first without pytest; here mypy starts from nothing, which takes a minute.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")

API = Path(__file__).parent / "typing" / "api.py"
WRONG = """
from scaffolding_ext import NativeGenerationController, ScaffoldingLlm, TokenCounts, load_config
load_config(3)
ScaffoldingLlm(NativeGenerationController(), [])
NativeGenerationController(streaming="yes")
TokenCounts(decoded="many")
"""


def mypy(*files: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run mypy as a user would: on the installed package, without the repository's own settings."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--ignore-missing-imports"]
    silent = ["--follow-imports=silent", f"--cache-dir={cache}", "--no-error-summary", "--hide-error-context"]
    return subprocess.run(
        [*command, *silent, *map(str, files)],
        cwd=cache,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.slow
def test_a_users_code_type_checks_and_wrong_code_does_not(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    lines = mypy(API, wrong, cache=tmp_path).stdout.splitlines()
    assert [line for line in lines if "wrong.py" not in line] == []
    assert [line.split(":")[1] for line in lines] == ["3", "4", "5", "6"]
