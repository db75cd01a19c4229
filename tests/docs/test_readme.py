"""The README's examples run as they stand, leave nothing running behind, and give what it shows."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext import DynasorCoTController, MajorityVoteController, load_config
from scaffolding_ext.stack.build import check_stack

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
FRONT = (Path(__file__).parents[2] / "docs" / "index.md").read_text(encoding="utf-8")  # of the site
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


def test_the_stack_file_is_the_python_example(tmp_path: Path) -> None:
    yaml = re.search(r"^```yaml\n(.*?)^```$", FRONT, re.MULTILINE | re.DOTALL)
    assert yaml is not None
    (tmp_path / "stack.yaml").write_text(yaml[1], encoding="utf-8")
    config = load_config(tmp_path / "stack.yaml")
    stack = check_stack(config)
    assert isinstance(stack, MajorityVoteController)
    assert isinstance(stack.generation_controller, DynasorCoTController)
    assert stack.default_sample_num == keywords("MajorityVoteController")["default_sample_num"]
    assert config.controller.args["generation_controller"]["args"] == keywords("DynasorCoTController")


def keywords(name: str) -> dict[str, Any]:
    """The keyword arguments that the example gives to a class."""
    calls = (node for node in ast.walk(ast.parse(example())) if isinstance(node, ast.Call))
    (call,) = (call for call in calls if ast.unparse(call.func) == name)
    return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}


def test_every_link_leads_to_a_file() -> None:
    root = Path(__file__).parents[2]
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (root / link.partition("#")[0]).exists()] == []


def test_its_commands_run_in_their_order_in_an_empty_folder(tmp_path: Path, warm_torch: Path) -> None:
    pytest.importorskip("torch")
    blocks = re.findall(r"^```bash\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    (block,) = (block for block in blocks if "scaffolding-ext check" in block)
    shutil.copytree(Path(__file__).parents[2] / "examples", tmp_path / "examples")
    done = subprocess.run(
        ["bash", "-ec", block],
        cwd=tmp_path,
        env=os.environ | {"PATH": os.pathsep.join([str(warm_torch), os.environ["PATH"]]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "No problems found" in done.stdout
    assert (tmp_path / "report.html").exists()
    for run in ("all", "vote"):
        assert (tmp_path / "runs" / run / "summary.json").exists()
