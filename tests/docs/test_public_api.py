"""The page of what is public names all of it and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

import scaffolding_ext
from scaffolding_ext import StackConfig
from scaffolding_ext.cli.main import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "public_api.md").read_text(encoding="utf-8")
GUIDES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != "public_api.md"]


def section(title: str) -> str:
    """What stands under a heading."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/public_api.md has no section {title}"
    return found[1]


def commands(group: click.Group, path: str = "") -> Iterator[str]:
    """Every command that does something."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield path + name


def test_the_page_names_what_the_package_exports() -> None:
    first_cells = [
        line.split("|")[1] for line in section("Names of `scaffolding_ext`").splitlines() if line.startswith("|")
    ]
    assert set(re.findall(r"`(\w+)`", " ".join(first_cells))) == set(scaffolding_ext.__all__)


def test_the_page_names_the_keys_of_a_stack_file() -> None:
    keys = set(re.findall(r"`(\w+)`", section("Stack files").partition(", with all")[0]))
    assert keys == set(StackConfig.model_fields)


def test_the_page_names_the_commands() -> None:
    named = re.findall(r"`([a-z ]+)`", section("Commands").partition("of `scaffolding-ext`")[0])
    assert set(named) == set(commands(main))


def test_what_the_guides_import_is_public() -> None:
    words = re.findall(r"`([\w.]+)`", section("Modules for authors"))
    public = {f"scaffolding_ext{word}" if word.startswith(".") else word for word in words}
    examples = (ROOT / "examples").glob("own_*/*.py")
    texts = [page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *GUIDES, *examples]]
    imported = {name for text in texts for name in re.findall(r"from (scaffolding_ext\.[\w.]+) import", text)}
    assert imported <= public
