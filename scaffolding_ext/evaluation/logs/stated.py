"""Read what logs of other tools state: answers, sampling settings, and results files beside them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scaffolding_ext.answers import extract
from scaffolding_ext.answers.extraction import shown
from scaffolding_ext.errors import DatasetError

_LETTER = re.compile(r"(?:[Oo]ption |[Cc]hoice )?[\s(\[*]*([A-Ja-j])[\s)\].:*]*")  # "(b)", "B.", "**B**", "option B"
_LONGEST_ANSWER = 100  # characters of an answer without a phrase or a box around it
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


def stated(field: str) -> str | None:
    """Return the answer in a field that may hold a whole text or only its answer.

    Scorers differ: some keep what they read, others the text that they searched. A short line in which nothing marks an
    answer is the answer; a longer text has none.
    """
    line = shown(field).strip()
    answer = extract(line)
    is_short = len(line) <= _LONGEST_ANSWER and "\n" not in line
    if answer is None and line and is_short and "\\boxed" not in line:
        return line
    return answer or extract(field)  # perhaps only its thinking states one


def letter_in(field: str) -> str | None:
    """Return the letter of an option if the field is nothing else, in upper case."""
    found = _LETTER.fullmatch(field)
    return None if found is None else found[1].upper()


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
