"""The table of `docs/answers.md` holds, row by row."""

from __future__ import annotations

import re
from pathlib import Path

from scaffolding_ext.answers import Verdict, equal

DOCS = Path(__file__).parents[2] / "docs" / "answers.md"


def rows() -> list[tuple[str, str, str, bool]]:
    """Pairs of the table with what it says of them, without and with implied units."""
    table = DOCS.read_text(encoding="utf-8").partition("## What equals what")[2].partition("\n## ")[0]
    found = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if len(cells) != 3 or "`" not in cells[0]:
            continue
        says = cells[1].split("; ")
        groups = [re.findall(r"`([^`]+)`", group) for group in cells[0].split("; ")]
        implied = [verdict.partition(" where ")[0] for verdict in says if " where " in verdict]
        plain = [verdict for verdict in says if " where " not in verdict]
        for number, group in enumerate(groups):
            first = groups[0][0] if len(group) == 1 else group[0]
            for other in group[1:] or group:
                found.append((first, other, plain[min(number, len(plain) - 1)], False))
                found += [(first, other, verdict, True) for verdict in implied]
    return found


def test_the_table_holds() -> None:
    faults = []
    for a, b, says, units_implied in rows():
        expected = Verdict("undetermined" if says == "as with a unit" else says)
        if (verdict := equal(a, b, 60.0, units_implied=units_implied)) is not expected:
            faults.append(f"{a} and {b}: {verdict.value}, not {expected.value}")
    assert faults == []
    assert len(rows()) > 25
