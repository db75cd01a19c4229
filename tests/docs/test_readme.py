"""The README's examples run as they stand, leave nothing running behind, and give what it shows."""

from __future__ import annotations

import ast
import os
import re
import subprocess
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


def run(python: Path, code: str, folder: Path) -> str:
    process = subprocess.run(
        [python / "python", "-W", "error", "-c", code],
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
    blocks = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    (code,) = (block for block in blocks if "HuggingFaceWorker" in block)
    return str(code)


def test_the_python_example_ends_well_with_samples_that_differ(tmp_path: Path, warm_torch: Path) -> None:
    pytest.importorskip("torch")
    outcome, answers = run(warm_torch, example() + AFTERWARDS, tmp_path).splitlines()
    assert outcome.split()[0] == "14"
    assert len(set(ast.literal_eval(answers))) > 1


def test_the_output_shown_is_of_the_example_s_form() -> None:
    shown = re.search(r"^```\n(\S+ \S+ \d+)\n(\[.*\])\n```$", README, re.MULTILINE)
    assert shown is not None
    assert len(set(ast.literal_eval(shown[2]))) > 1


def test_every_link_leads_to_a_file() -> None:
    root = Path(__file__).parents[2]
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (root / link.partition("#")[0]).exists()] == []
