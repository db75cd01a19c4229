"""The README's Python example runs as it stands, and leaves nothing running behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
WAIT = 300.0  # seconds until a hanging process fails its test
AFTERWARDS = """
import threading
for thread in threading.enumerate():
    if thread.name in ("generation-engine", "scaffolding-llm"):
        thread.join(60)
        assert not thread.is_alive(), f"{thread.name} runs on"
"""


def run(code: str, folder: Path) -> str:
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def example() -> str:
    code = re.search(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert code is not None
    return code[1]


def test_the_python_example_leaves_no_thread(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert "chain" in run(example() + AFTERWARDS, tmp_path)


def test_the_interpreter_may_end_right_after_it(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    without_prompting = re.sub(r"^controller.prompting = .*\n", "", example(), flags=re.MULTILINE)
    assert "</think>" in run(without_prompting, tmp_path)  # its text: the host finds the model's template by itself
