"""Files that a study runs are found from its text."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks._lib import imported


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study that imports three modules of which one is for types, a public name, and a stack file."""
    monkeypatch.setattr(imported, "ROOT", tmp_path)
    texts = {
        "study.py": "from typing import TYPE_CHECKING\nimport pack.one\nfrom pack import two\n"
        "from scaffolding_ext import ScaffoldingLlm\nif TYPE_CHECKING:\n    import pack.types\n"
        "NAME = 'configs:mine'\n",
        "pack/__init__.py": "",
        "pack/one.py": "def later():\n    from pack.inner import thing\n",
        "pack/two.py": "import study\n",
        "pack/inner.py": "",
        "pack/types.py": "",
        "pack/other.py": "",
        "scaffolding_ext/__init__.py": "",
        "scaffolding_ext/host/llm.py": "",
        "scaffolding_ext/controllers/chain/dynasor_cot.py": "",
        "configs/mine.yaml": "controller:\n  type: DynasorCoTController\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_modules_count_with_what_they_import_and_types_do_not(repository: Path) -> None:
    found = {str(path) for path in imported.imported_by.__wrapped__("study")}
    assert found == {
        "study.py",
        "pack/__init__.py",
        "pack/one.py",
        "pack/two.py",
        "pack/inner.py",
        "configs/mine.yaml",
        "scaffolding_ext/host/llm.py",
        "scaffolding_ext/controllers/chain/dynasor_cot.py",
    }


def test_changes_are_told_from_a_commit_that_is_not_at_hand(repository: Path) -> None:
    def git(*arguments: str) -> str:
        names = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        command = ["git", *names, *arguments]
        return subprocess.run(command, cwd=repository, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    first = git("rev-parse", "HEAD")
    (repository / "pack/two.py").write_text("import pack.other\n", encoding="utf-8")
    git("commit", "-q", "-a", "-m", "second")
    changed = imported.changed_since(first)
    assert changed is not None
    assert changed & imported.imported_by.__wrapped__("study") == {Path("pack/two.py")}
    assert imported.changed_since("0123456789") is None


def test_a_study_runs_the_rule_that_it_measures() -> None:
    files = {str(path) for path in imported.imported_by("benchmarks.studies.demo")}
    assert {"configs/dynasor_cot.yaml", "controllers/chain/dynasor_cot.py", "benchmarks/_lib/runs.py"} <= files
    assert "benchmarks/studies/vllm.py" not in files
