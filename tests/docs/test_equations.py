"""Every function, argument and test that the table of equations names is there."""

from __future__ import annotations

import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
QUOTED = re.compile(r"`([^`]+)`")


class Row(NamedTuple):
    """A line of the table, cell by cell."""

    source: str
    rule: str
    function: str
    test: str
    deviation: str


def rows() -> list[Row]:
    text = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [Row(*line) for line in cells[2:]]  # a heading and a rule go first


def found(name: str, before: Any) -> Any:
    """What a name stands for: within the package, beside the name before it, or an argument of that."""
    if before is not None:
        if name in inspect.signature(before).parameters if callable(before) else False:
            return before
        beside = getattr(inspect.getmodule(before), name, None)
        if beside is not None:
            return beside
    return pkgutil.resolve_name(name if name.startswith("benchmarks.") else f"scaffolding_ext.{name}")


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.rule)
def test_what_a_row_names_is_there(row: Row) -> None:
    names = QUOTED.findall(row.function)
    assert names, "the row names no function"
    before: Any = None
    for name in names:
        try:
            before = found(name.partition("=")[0], before)
        except (ImportError, AttributeError) as error:
            pytest.fail(f"{name!r} is not there, and no argument of what stands before it: {error}")


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.rule)
def test_its_tests_are_there(row: Row) -> None:
    paths = QUOTED.findall(row.test)
    assert paths, "the row names no test"
    for path in paths:
        file, _, function = path.partition("::")
        assert (ROOT / file).is_file(), f"there is no {file}"
        assert not function or f"def {function}(" in (ROOT / file).read_text(encoding="utf-8"), f"no test {function}"


def test_the_table_is_not_empty() -> None:
    assert len(rows()) >= 9
