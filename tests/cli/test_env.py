"""`scaffolding-ext env` says what a report needs, and nothing that is its user's own."""

from __future__ import annotations

import importlib.machinery
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from scaffolding_ext import __version__
from scaffolding_ext.cli.main import main
from scaffolding_ext.doctor import bug_report

SECRETS = {
    "OPENAI_API_KEY": "sk-proj-1234567890abcdef",
    "HF_TOKEN": "hf_abcdefghijklmnop",
    "DATABASE_PASSWORD": "hunter2",
    "KEYS": "anna:change-me",
    "OMP_NUM_THREADS": "my secret /home/anna",  # even where it cannot be a setting
}


def told(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["env", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_it_says_versions_hardware_and_extras() -> None:
    found = json.loads(told("--json"))
    assert found["package"]["version"] == __version__
    assert found["hardware"]["cores"] == os.cpu_count()
    assert {"numpy", "pydantic", "click"} <= found["packages"].keys()


def test_an_extra_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["numpy>=1.26", 'here[more]>=1; extra == "hf"', "gone<2 ; extra == 'hf'", 'here; extra == "openai"']
    monkeypatch.setattr("importlib.metadata.requires", lambda name: lines)
    monkeypatch.setattr(bug_report, "_version", lambda name: None if name == "gone" else "1.0")
    found = json.loads(told("--json"))
    assert found["extras"] == {"hf": ["gone"], "openai": []}
    assert found["packages"]["here"] == "1.0"


@pytest.mark.parametrize("is_built", [True, False])
def test_it_says_whether_the_kernel_was_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_built: bool) -> None:
    folder = tmp_path / "workers" / "huggingface"
    folder.mkdir(parents=True)
    (folder / f"_block_kernel.abi3.{'so' if is_built else 'c'}").touch()
    spec = importlib.machinery.ModuleSpec("scaffolding_ext", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    assert bug_report.environment()["package"]["kernel"] is is_built


def test_a_gpu_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 81559 MiB, 570.86.10'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert "NVIDIA H100 80GB HBM3, 81559 MiB, 570.86.10" in told()
    smi.write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    assert json.loads(told("--json"))["hardware"]["gpus"] == []


def test_no_secret_of_the_environment_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    output = told() + told("--json")
    assert not [value for value in SECRETS.values() if value in output]
    assert os.path.expanduser("~/") not in output
    assert "OMP_NUM_THREADS" in output
