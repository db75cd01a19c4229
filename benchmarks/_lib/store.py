"""Keeps results as JSON files in a folder, so that nothing runs twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from scaffolding_ext.documents import write_text

_V = TypeVar("_V")


def kept(store: Path | None, name: str, find: Callable[[], _V]) -> _V:
    """The result of `find`, as JSON gives it back; from the folder if it was found before."""
    if store is None:
        return find()
    path = store / f"{name}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(find()))
    found: _V = json.loads(path.read_text(encoding="utf-8"))
    return found
