"""The page on adding a controller is true: its commands run, and its code is that of the examples that it names."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scaffolding_ext.evaluation.run.records import read_records

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding_a_controller.md").read_text(encoding="utf-8")
EXAMPLES = ROOT / "examples" / "own_controller"
FAKE_UPSTREAM = Path(__file__).parents[1] / "fake_upstream"
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXCERPTS = [(title, text) for _, title, text in FENCE.findall(PAGE) if title]
COMMANDS = [text for language, _, text in FENCE.findall(PAGE) if language == "bash"]
WAIT = 300.0  # seconds until a hanging process fails its test


@pytest.fixture
def folder(tmp_path: Path, warm_torch: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the examples, for commands of which none need import torch anew."""
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("PATH", os.pathsep.join([str(warm_torch), os.environ["PATH"]]))
    return tmp_path


def run(command: list[str], folder: Path, *python_path: Path) -> str:
    """Run a command in the folder, where the page's files are found, and give what it wrote."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {
        "PYTHONPATH": os.pathsep.join(map(str, python_path)),
        "OMP_NUM_THREADS": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    process = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=WAIT, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def python(code: str, folder: Path, *python_path: Path) -> str:
    return run(["python", "-W", "error", "-c", code], folder, *python_path)


def test_the_code_on_the_page_is_that_of_the_examples() -> None:
    assert [title for title, text in EXCERPTS if text not in (EXAMPLES / title).read_text(encoding="utf-8")] == []
    names = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    assert {name for name in names if f"../examples/own_controller/{name}" not in PAGE} == set()
    assert len(COMMANDS) == 2


def test_its_tests_pass(folder: Path) -> None:
    (command,) = (text for text in COMMANDS if "pytest" in text)
    output = run(["bash", "-ec", command.replace("pytest", "pytest -p no:cacheprovider")], folder)
    assert " passed" in output
    assert "failed" not in output


def test_the_rule_s_stack_file_can_be_built(folder: Path) -> None:
    command = "scaffolding-ext eval --config share.yaml --dataset tinylm:held_out --limit 4 --dry_run"
    assert "stack and dataset are fine: 4 questions, 4 requests" in run(command.split(), folder, folder)


def test_it_runs_from_python(folder: Path) -> None:
    pytest.importorskip("torch")
    output = run(["python", "ask.py"], folder)
    assert '"by_purpose"' in output.replace("'", '"')
    assert "'event': 'glance'" in output


def test_it_runs_from_yaml_on_the_command_line(folder: Path) -> None:
    pytest.importorskip("torch")
    (commands,) = (text for text in COMMANDS if "scaffolding-ext run" in text)
    output = run(["bash", "-ec", commands], folder)
    assert "stack and dataset are fine: 4 questions, 4 requests" in output
    assert re.search(r"^probe +[1-9]\d* decoded", output, re.MULTILINE)
    records = read_records(folder / "runs" / "glance" / "samples.jsonl")
    assert len(records) == 4
    assert all(record.error is None for record in records)
    summary = json.loads((folder / "runs" / "glance" / "summary.json").read_text())["summary"]
    assert summary["mean_tokens_by_purpose"]["probe"]["decoded"] >= 2
    assert summary["sections"]["GlanceController"]["guesses"]["value"] == 2
    assert summary["sections"]["GlanceController"]["agreed"]["of"] == 4


def test_a_wrong_argument_is_named_by_its_key_as_the_page_says(folder: Path) -> None:
    message = "controller.args.num_guesses: is 1; it takes at least 2 guesses to agree"
    assert message in PAGE
    code = (
        "from scaffolding_ext import ConfigError, load_stack\n"
        "try:\n"
        "    load_stack('glance.yaml', ['controller.args.num_guesses=1'])\n"
        "except ConfigError as error:\n"
        f"    assert str(error) == {message!r}, error\n"
        "else:\n"
        "    raise SystemExit('nothing was raised')\n"
    )
    python(code, folder, folder)


def test_the_decorator_gives_it_a_name(folder: Path) -> None:
    code = (
        "import patient\n"
        "from scaffolding_ext import load_stack\n"
        "args = {'generation_controller': {'type': 'NativeGenerationController'}}\n"
        "workers = {'generation': {'type': 'ScriptedWorker', 'args': {'respond': '7}'}}}\n"
        "controller = {'type': 'PatientGlanceController', 'args': args}\n"
        "with load_stack({'controller': controller, 'workers': workers}) as llm:\n"
        "    result = llm.generate('How many?')\n"
        "assert type(llm.prototype_controller) is patient.PatientGlanceController\n"
        "assert (result.answer, result.exit_reason) == ('7', 'glance'), result.outputs\n"
        "assert result.program.trace[0]['answers'] == ['7'] * 5\n"
    )
    python(code, folder, folder)


def test_the_entry_point_gives_it_a_name(folder: Path) -> None:
    version = importlib.metadata.version("setuptools") if importlib.util.find_spec("setuptools") else "0"
    offline = ["--no-build-isolation"] if int(version.split(".")[0]) >= 71 else []
    site = folder / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *offline, "--target", str(site), "."]
    run(pip, folder)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    code = (
        "import sys\n"
        "from scaffolding_ext import registry\n"
        "assert 'GlanceController' in registry.controllers.names()\n"
        "assert 'glance' not in sys.modules\n"
        "assert registry.controllers.resolve('GlanceController').__module__ == 'glance'\n"
    )
    python(code, elsewhere, site)


def test_it_runs_under_upstreams_host(folder: Path) -> None:
    pytest.importorskip("torch")
    output = run(["python", "upstream.py"], folder, FAKE_UPSTREAM)
    assert output.strip()
    assert output.strip() != "None"
