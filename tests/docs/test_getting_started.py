"""The page on getting started: its files and commands run as they stand, and its own-model stacks are right."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from scaffolding_ext import plain_yaml
from scaffolding_ext.stack.build import check_stack
from scaffolding_ext.stack.load import load_config

pytest.importorskip("torch")
PAGE = (Path(__file__).parents[2] / "docs" / "getting_started.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = {title: text for _, title, text in FENCE.findall(PAGE) if title}
COMMANDS = "".join(text for language, _, text in FENCE.findall(PAGE) if language == "bash" and "pip " not in text)


def test_its_commands_run_as_they_stand(tmp_path: Path, warm_torch: Path) -> None:
    for title, text in FILES.items():
        (tmp_path / title).write_text(text, encoding="utf-8")
    environment = os.environ | {"PATH": os.pathsep.join([str(warm_torch), os.environ["PATH"]])}
    assert COMMANDS.count("scaffolding-ext ") == 8
    done = subprocess.run(
        ["bash", "-ec", COMMANDS], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^answer +12$", done.stdout, re.MULTILINE)
    assert re.search(r"^answer +6$", done.stdout, re.MULTILINE)
    assert re.search(r"^[\d.]+ of 16 answers, \d+ % saved; all 16 would take about [\d,]+ tokens$", done.stdout, re.M)
    assert re.search(r"^vote .* % saved \(", done.stdout, re.MULTILINE)
    for run in ("plain", "mine", "vote", "all"):
        assert len((tmp_path / "runs" / run / "samples.jsonl").read_text(encoding="utf-8").splitlines()) == 3
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize(("served", "model"), [(False, "tinylm/target"), (True, "Qwen/Qwen3-8B")])
def test_its_own_model_stacks_are_right(served: bool, model: str) -> None:
    """Its model of a hub is replaced by one that is here."""
    stack = plain_yaml.parse(FILES["my_model.yaml"], "my_model.yaml")
    if served:  # the page shows the worker alone
        pytest.importorskip("openai")
        (workers,) = [text for language, title, text in FENCE.findall(PAGE) if language == "yaml" and not title]
        stack |= plain_yaml.parse(workers, "the page")
        stack["prompt"] |= {"model": "tinylm/target"}
    stack["workers"]["generation"]["args"]["model"] = model
    check_stack(load_config(stack))
