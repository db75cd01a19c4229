"""`scaffolding-ext env` says what a report needs, and nothing that is its user's own."""

from __future__ import annotations

import importlib.machinery
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from scaffolding_ext import __version__, plain_yaml
from scaffolding_ext.cli.main import main
from scaffolding_ext.doctor import bug_report
from scaffolding_ext.doctor.bug_report import shareable
from scaffolding_ext.stack.config import StackConfig

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


def written(folder: Path, stack: dict[str, Any]) -> str:
    path = folder / "secret_project.yaml"
    path.write_text(plain_yaml.dump(stack), encoding="utf-8")
    return str(path)


def stack_with(args: dict[str, Any]) -> StackConfig:
    """A stack whose worker has these arguments."""
    worker = {"type": "HuggingFaceWorker", "args": args}
    return StackConfig.model_validate(
        {"controller": {"type": "NativeGenerationController"}, "workers": {"generation": worker}}
    )


def test_it_says_versions_hardware_extras_and_stack() -> None:
    found = json.loads(told("--config", "configs:dynasor_cot", "--json"))
    assert found["package"]["version"] == __version__
    assert found["hardware"]["cores"] == os.cpu_count()
    assert {"numpy", "pydantic", "click"} <= found["packages"].keys()
    assert found["stack"]["controller"]["type"] == "DynasorCoTController"
    assert found["stack"]["controller"]["args"]["chunk_size"] == 32
    assert found["stack"]["workers"]["generation"]["args"]["model"] == "tinylm/target"


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


def test_no_secret_of_a_stack_is_shown(tmp_path: Path) -> None:
    hidden = [
        "hunter2",
        "sk-proj-1234567890abcdef",
        "anna",
        "internal.example.com",
        "never tell",
        "tenant-77",
        "hf_abcdefghijklmnop",
        "AKIA1234567890",
        "4711",
        "secret_project",
    ]
    stack = {
        "controller": {
            "type": "NativeGenerationController",
            "args": {
                "sampling_params": {"max_tokens": 12, "stop": ["never tell"]},
                "extra": [{"deep": {"text": "hunter2", "reward": "AKIA1234567890", "password": 4711}}],
                "sk-proj-1234567890abcdef": True,
                "mode": "hf_abcdefghijklmnop",
            },
        },
        "workers": {
            "generation": {
                "type": "OpenAIWorker",
                "args": {
                    "base_url": "https://anna:hunter2@internal.example.com/v1?key=sk-proj-1234567890abcdef",
                    "model": "/home/anna/models/Qwen3-8B",
                    "headers": {"X-Tenant": "tenant-77"},
                    "api_key_env": "ANNA_hunter2",
                },
            },
            "judge": {"type": "my_module:Judge", "args": {"model": "https://anna:hunter2@internal.example.com/"}},
            "local": {
                "type": "OpenAIWorker",
                "args": {"base_url": "http://localhost:8000/v1", "model": "Qwen/Qwen3-8B"},
            },
        },
        "prompt": {"system_prompt": "never tell"},
        "dataset": {"source": "/home/anna/questions.jsonl", "columns": {"prompt": "tenant-77"}},
    }
    path = written(tmp_path, stack)
    output = told("--config", path) + told("--config", path, "--json")
    assert not [text for text in hidden if text in output]
    for shown in ("Qwen/Qwen3-8B", "Qwen3-8B", "https, another machine", "http, this machine", "my_module:Judge"):
        assert shown in output
    assert '"max_tokens": 12' in output


@pytest.mark.parametrize(
    "text", ["hunter2", "/etc/passwd", "ünï", "a" * 4000, "http://[half", "ftp://anna@example.com/pub", "anna:hunter2"]
)
@pytest.mark.parametrize("key", ["device", "rule", "reward", "type", "tokenizer_path", "anything"])
def test_a_text_that_is_on_no_list_is_told_by_its_length(key: str, text: str) -> None:
    if (key, text) == ("type", "anna:hunter2"):
        pytest.skip("that is how a class of one's own is named")
    shown = json.dumps(shareable(stack_with({key: text})), ensure_ascii=False)
    assert text not in shown
    assert "characters)" in shown or "another machine)" in shown


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ("tinylm/target", "tinylm/target"),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("/home/anna/Qwen3-8B/", "Qwen3-8B"),
        ("C:\\Users\\anna\\Qwen3-8B", "Qwen3-8B"),
        ("../anna", "anna"),
        ("https://anna:hunter2@example.com/key", "(https, another machine)"),
        ("sk-proj-1234567890abcdef", "(text of 24 characters)"),
        ("", "(text of 0 characters)"),
    ],
)
def test_a_model_is_named_without_its_path(model: str, shown: str) -> None:
    found = shareable(stack_with({"model": model}))
    assert found["workers"]["generation"]["args"] == {"model": shown}


def test_set_without_a_stack_is_refused() -> None:
    result = CliRunner().invoke(main, ["env", "--set", "seed=1"])
    assert result.exit_code == 2
    assert "--set is given without --config" in result.output
