"""Results files and sampling settings that other tools record beside their logs, under this package's names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scaffolding_ext.errors import DatasetError

_NAMES = {
    "max_new_tokens": "max_tokens",
    "max_gen_toks": "max_tokens",
    "min_new_tokens": "min_tokens",
    "stop_seqs": "stop",
    "stop_tokens": "stop",
    "until": "stop",
}
_FIELDS = frozenset(
    (
        *("temperature", "top_p", "top_k", "min_p", "max_tokens", "min_tokens", "stop"),
        *("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias"),
        *("reasoning_effort", "reasoning_tokens"),
    )
)


def sampling_of(*given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the sampling fields that are set, the last value of each; None if there are none."""
    found: dict[str, Any] = {}
    for fields in given:
        named = {_NAMES.get(name, name): value for name, value in fields.items()}
        found |= {name: value for name, value in named.items() if name in _FIELDS and value not in (None, [], "")}
        if fields.get("do_sample") is False:
            found.setdefault("temperature", 0.0)
    return found or None


def read_results(path: Path) -> Mapping[str, Any]:
    """Read the results file of a run; empty if the log came without it.

    Raises:
        DatasetError: It is not a JSON object.
    """
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DatasetError(f"{path}: is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise DatasetError(f"{path}: is not a JSON object, as results are")
    return found
