"""Options of a multiple-choice question that stand in columns, one each, such as `A` to `D` or `option_a`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_NAME = re.compile(
    r"(?:(?P<prefix>option|opt|op|choice|answer|ans|ending|sol)[ _-]?(?P<own>[a-j]|\d)|(?P<alone>[A-J]))",
    re.IGNORECASE,
)
_STARTS = ("a", "0", "1")


def option_columns(row: Mapping[str, Any]) -> dict[str, str]:
    """Columns of the options by their labels: `A`, `B`, ... or numbers as the columns have them.

    At least two columns of the same name must follow each other from `a`, `0` or `1`; empty ones at the end are left
    out. Returns an empty dict if there are none.
    """
    groups: dict[str, dict[str, str]] = {}
    for name in row:
        match = _NAME.fullmatch(name)
        if match is not None and not (match["alone"] or "A").islower():
            groups.setdefault((match["prefix"] or "").lower(), {})[(match["own"] or match["alone"]).lower()] = name
    for found in groups.values():
        start = next((start for start in _STARTS if start in found), None)
        labels = [] if start is None else _following(found, row, start)
        if len(labels) >= 2:
            return {label.upper(): found[label] for label in labels}
    return {}


def _following(found: Mapping[str, str], row: Mapping[str, Any], label: str) -> list[str]:
    labels = []
    while label in found and row[found[label]] not in (None, ""):
        labels.append(label)
        label = chr(ord(label) + 1)
    return labels
