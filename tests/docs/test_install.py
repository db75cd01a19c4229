"""Every page installs the package as it can be installed today, and by extras that there are; one line says how."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext import errors
from scaffolding_ext.errors import MissingDependencyError, how_to_install, install_command

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "_scripts" / "install_commands.py"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
BRINGS_TORCH = {"hf", "lm-eval", "semantic", "train", "all"}
INSTALL = re.compile(
    r"pip install (?:-e |--editable )?'?(?:\.|scaffolding-ext)(?:\[([^]]*)])?'?(?=[\s`;]|$)", re.MULTILINE
)


def script() -> Any:
    """The script that `make pages` runs."""
    spec = importlib.util.spec_from_file_location("install_commands", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def extras() -> set[str]:
    """Those of setup.py."""
    text = (ROOT / "setup.py").read_text(encoding="utf-8")
    return set(re.findall(r'^    "([\w-]+)": \[', text, re.MULTILINE)) | {"all"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_says_the_command_of_today(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert script().with_todays_commands(text) == text, "run: make pages"
    for found in INSTALL.finditer(text):
        named = re.findall(r"[\w-]+", found[1] or "")
        assert found[0] == install_command(*named), "write the command as install_command does"
        assert set(named) <= extras()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_that_installs_torch_says_how_to_have_the_small_one(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = {name for found in INSTALL.finditer(text) for name in re.findall(r"[\w-]+", found[1] or "")}
    assert not named & BRINGS_TORCH or "install.md" in text or "download.pytorch.org/whl/cpu" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_that_reads_a_data_set_of_a_hub_installs_what_reads_it(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    installed = {name for found in INSTALL.finditer(text) for name in re.findall(r"[\w-]+", found[1] or "")}
    assert "--dataset hf:" not in text or installed & {"problems", "all"}


def test_a_release_changes_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    page = "Say `pip install '.[hf, openai]'`, or `pip install '.'`; not `pip install './other'`."
    monkeypatch.setattr(errors, "RELEASED", True)
    released = page.replace("'.[hf, openai]'", "'scaffolding-ext[hf,openai]'").replace("'.'", "'scaffolding-ext'")
    assert script().with_todays_commands(page) == released
    assert how_to_install("hf") == "install it with: pip install 'scaffolding-ext[hf]'"
    monkeypatch.setattr(errors, "RELEASED", False)
    assert script().with_todays_commands(released) == page.replace("hf, openai", "hf,openai")


def test_an_error_says_the_command_of_the_pages() -> None:
    assert str(MissingDependencyError("torch", "hf")) == f"torch is not installed; {how_to_install('hf')}"
    both = MissingDependencyError("torch and transformers", "hf")
    assert str(both) == f"torch and transformers are not installed; {how_to_install('hf')}"
    assert install_command("hf") in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_page_of_installing_names_every_extra() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row)} == extras()
