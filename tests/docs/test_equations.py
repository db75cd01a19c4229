"""Every function and argument that the tables of equations name is there, and a test names one of each row."""

from __future__ import annotations

import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
QUOTED = re.compile(r"`([^`]+)`")


TESTS = "\n".join(
    path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "tests").rglob("test_*.py"))
    if not path.is_relative_to(ROOT / "tests" / "docs")
)


class Row(NamedTuple):
    """A line of a table, cell by cell."""

    rule: str
    function: str
    deviation: str


def rows() -> list[Row]:
    text = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.removesuffix("|").removeprefix("|").split(" | ")] for line in lines]
    return [Row(*line) for line in cells if line[0] != "rule or equation"]


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
def test_a_test_names_one_of_its_functions(row: Row) -> None:
    names = [name.rpartition(".")[2] for name in QUOTED.findall(row.function)]
    assert any(re.search(rf"\b{name}\b", TESTS) for name in names), f"no test names any of {names}"


def test_the_tables_are_read() -> None:
    assert len(rows()) > 70
