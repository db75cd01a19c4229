"""Every page installs the package as it can be installed today, from a clone, and by extras that there are."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

from scaffolding_ext.errors import MissingDependencyError

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
EXTRAS = set(importlib.metadata.metadata("scaffolding-ext").get_all("Provides-Extra") or ())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_names_a_release_that_is_not_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "scaffolding-ext[" not in text, "write: pip install '.[EXTRA]', in a clone"
    for extras in re.findall(r"pip install (?:-e )?'?\.\[([^]]*)]", text):
        assert {name.strip() for name in extras.split(",")} <= EXTRAS


def test_an_error_says_the_command_of_the_pages() -> None:
    assert str(MissingDependencyError("torch", "hf")).endswith("pip install '.[hf]'")
    assert "pip install '.[hf]'" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "hf" in EXTRAS
