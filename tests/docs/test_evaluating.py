"""The page on evaluating is true: its files and commands are taken from it and run as they stand."""

from __future__ import annotations

import os
import pkgutil
import re
import subprocess
from pathlib import Path

import pytest

from scaffolding_ext import plain_yaml
from scaffolding_ext.evaluation.run.records import read_records
from scaffolding_ext.stack.load import load_config

pytest.importorskip("torch")

PAGE = (Path(__file__).parents[2] / "docs" / "evaluating.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = {title: text for _, title, text in FENCE.findall(PAGE) if title}
(COMMANDS,) = (text for language, _, text in FENCE.findall(PAGE) if language == "bash")


def run(python: Path, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": os.pathsep.join([str(python), os.environ["PATH"]])}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_it_runs_as_it_stands(tmp_path: Path, warm_torch: Path) -> None:
    assert PAGE.count("\n```") == 2 * (len(FILES) + 3)  # no block escapes: files, commands, a section of a stack, Ray
    (section,) = (text for language, _, text in FENCE.findall(PAGE) if language == "yaml" and "controller" not in text)
    assert load_config({**plain_yaml.parse(FILES["lessons.yaml"], "lessons"), **plain_yaml.parse(section, "section")})
    for title, text in FILES.items():
        (tmp_path / title).write_text(text, encoding="utf-8")
    done = run(warm_torch, tmp_path, "bash", "-ec", COMMANDS)
    assert "stack and dataset are fine: 2 questions, 2 requests" in done.stdout
    assert "Warning: lessons.jsonl: 1 of 3 rows are skipped: line 3: no field 'solution'" in done.stderr
    lessons = {record.id: record for record in read_records(tmp_path / "runs" / "native" / "samples.jsonl")}
    assert {name: record.target for name, record in lessons.items()} == {"a": "The answer is 6", "b": "7"}
    table = run(warm_torch, tmp_path, "python", "-W", "error", "compare_runs.py").stdout
    assert re.search(r"^chains: [0-4] of 4 right, ", table, re.MULTILINE)
    assert re.search(r"^dynasor: [0-4] of 4 right, ", table, re.MULTILINE)
    assert re.fullmatch(r"held_out-\S+ \S+ \S+ (True|False) \w+", table.splitlines()[-1])


def test_it_names_what_exists() -> None:
    for name in re.findall(r"`(scaffolding_ext(?:\.\w+)+)\(", PAGE):
        assert callable(pkgutil.resolve_name(name))
