"""What the pages name is there: modules and functions of the package, and files of the repository."""

from __future__ import annotations

import importlib.util
import pkgutil
import re
from pathlib import Path

import pytest

from scaffolding_ext import registry

ROOT = Path(__file__).parents[2]
GROUPS = {f"scaffolding_ext.{name}" for name, each in vars(registry).items() if isinstance(each, registry.Registry)}
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
DOTTED = re.compile(r"(?<![\w./-])scaffolding_ext(?:\.\w+)+")
FILES = (".py", ".json", ".md", ".yaml")
IMPORTED = re.compile(r"from (scaffolding_ext[\w.]*) import ([\w, ]+)")
NAMED_FILE = re.compile(
    r"`((?:benchmarks|tests|docs|controllers|workers|configs|docker|deploy|examples)/[\w./-]*\.\w+)`"
)


def is_there(name: str) -> bool:
    """Whether the name can be imported, or would be with its extra."""
    module, _, last = name.rpartition(".")
    try:
        owner = pkgutil.resolve_name(module)
    except (ImportError, AttributeError):
        return f"class {last}(" in source_of(module)
    return hasattr(owner, last) or (hasattr(owner, "__path__") and importlib.util.find_spec(name) is not None)


def source_of(module: str) -> str:
    """Text of a module that needs its extra; empty if there is none."""
    path = ROOT / f"{module.replace('.', '/')}.py"
    return path.read_text(encoding="utf-8") if path.exists() else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    names = {name for name in DOTTED.findall(text) if not name.endswith(FILES)} - GROUPS
    for module, imported in IMPORTED.findall(text):
        names |= {f"{module}.{name.strip()}" for name in imported.split(",") if name.strip()}
    files = {name for name in NAMED_FILE.findall(text) if not (ROOT / name).exists()}
    assert sorted(name for name in names if not is_there(name)) == []
    assert sorted(files) == []
