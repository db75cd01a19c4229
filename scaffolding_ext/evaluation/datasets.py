"""Datasets: JSONL files, and the embedded grammar's problems. Every row is checked before anything is generated."""

from __future__ import annotations

import json
import math
import os
import random
import re
from pathlib import Path
from typing import Any, NamedTuple

from scaffolding_ext.errors import DatasetError
from scaffolding_ext.tinylm.grammar import KINDS, sample_problem

EMBEDDED = "tinylm:held_out"
PROMPT_FIELDS = ("problem", "question", "prompt")
TARGET_FIELDS = ("answer", "target")
_DEFAULT_NUM_SAMPLES = 100
_MAX_DRAWS_PER_SAMPLE = 100  # draws that may repeat an earlier problem


class Sample(NamedTuple):
    """One question.

    Attributes:
        id: Unique in its dataset; the sample's seeds derive from it.
        prompt: What the user asks.
        target: The right answer.
        kind: What sort of question it is, or None.
    """

    id: str
    prompt: str
    target: str
    kind: str | None = None


class Limit(NamedTuple):
    """Which samples to take, counted from 1, both ends included."""

    first: int
    last: int


def load_dataset(
    source: str | os.PathLike[str],
    *,
    num_samples: int | None = None,
    seed: int = 0,
    kind: str | None = None,
    limit: str | None = None,
) -> list[Sample]:
    """Load a dataset.

    Args:
        source: Path of a JSONL file, or `tinylm:held_out`.
        num_samples: How many embedded problems to draw; None means 100.
        seed: Which embedded problems to draw.
        kind: Draw embedded problems of this kind only.
        limit: `"N"`, the first N samples, or `"A-B"`, those from the A-th to the B-th.

    Raises:
        DatasetError: The source, a row, or the limit is unusable.
    """
    name = os.fspath(source)
    wanted = None if limit is None else parse_limit(limit)
    if name == EMBEDDED:
        samples = embedded_problems(_DEFAULT_NUM_SAMPLES if num_samples is None else num_samples, seed, kind)
    elif name.startswith("tinylm:"):
        raise DatasetError(f"unknown embedded dataset {name!r}; known: {EMBEDDED}")
    elif num_samples is not None or kind is not None:
        raise DatasetError(f"num_samples and kind are for {EMBEDDED}; {name} is a file: choose its rows with limit")
    else:
        samples = read_jsonl(name)
    if wanted is None:
        return samples
    if wanted.first > len(samples):
        raise DatasetError(f"limit {limit} leaves nothing: {name} has {len(samples)} samples")
    return samples[wanted.first - 1 : wanted.last]


def parse_limit(limit: str) -> Limit:
    """Read `"N"` or `"A-B"`.

    Raises:
        DatasetError: It is neither, or it is empty.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)", limit.strip())
    parsed = Limit(int(match[1] or 1), int(match[2])) if match else Limit(0, 0)
    if not 1 <= parsed.first <= parsed.last:
        raise DatasetError(f"limit is {limit!r}; write N for the first N samples, or A-B with 1 <= A <= B")
    return parsed


def embedded_problems(num_samples: int, seed: int = 0, kind: str | None = None) -> list[Sample]:
    """Draw distinct held-out problems; a larger `num_samples` extends the same list.

    Raises:
        DatasetError: The kind is unknown, or it has too few different problems.
    """
    if kind is not None and kind not in KINDS:
        raise DatasetError(f"unknown kind {kind!r} of {EMBEDDED}; known: {', '.join(KINDS)}")
    rng = random.Random(seed)
    problems: dict[str, Sample] = {}
    for _ in range(num_samples * _MAX_DRAWS_PER_SAMPLE):
        if len(problems) == num_samples:
            break
        problem = sample_problem(rng, "held_out", kind)
        name = f"held_out-{seed}-{len(problems)}"
        problems.setdefault(problem.question, Sample(name, problem.question, problem.answer, problem.kind))
    if len(problems) < num_samples:
        raise DatasetError(f"{EMBEDDED} gave {len(problems)} different problems, not {num_samples}; ask for fewer")
    return list(problems.values())


def read_jsonl(path: str | os.PathLike[str]) -> list[Sample]:
    """Read a JSONL file with one object a line.

    Its fields: `problem`, `question` or `prompt`; `answer` or `target` (text or a number); `id` (the line's number
    where there is none); `kind`. Other fields are left alone; empty lines are skipped.

    Raises:
        DatasetError: The file cannot be read or is empty, or a row is unusable; it names file, line and field.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"cannot read the dataset {os.fspath(path)}: {error}") from error
    samples: dict[str, Sample] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{os.fspath(path)}, line {number}"
        sample = _read_row(line, number, place)
        if sample.id in samples:
            raise DatasetError(f"{place}, field 'id': {sample.id!r} names an earlier row already; ids must be unique")
        samples[sample.id] = sample
    if not samples:
        raise DatasetError(f"the dataset {os.fspath(path)} has no rows")
    return list(samples.values())


def _read_row(line: str, number: int, place: str) -> Sample:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DatasetError(f"{place}: no valid JSON: {error}") from error
    if not isinstance(row, dict):
        raise DatasetError(f"{place}: a {type(row).__name__}; a row is an object with a question and an answer")
    prompt_field, target_field = _present(row, PROMPT_FIELDS, place), _present(row, TARGET_FIELDS, place)
    prompt = row[prompt_field]
    if not isinstance(prompt, str) or not prompt.strip():
        raise DatasetError(f"{place}, field {prompt_field!r}: {prompt!r}; it must be text that is not empty")
    name = _as_text(row["id"], "id", place) if row.get("id") is not None else str(number)
    kind = _as_text(row["kind"], "kind", place) if row.get("kind") is not None else None
    return Sample(name, prompt, _as_text(row[target_field], target_field, place), kind)


def _present(row: dict[str, Any], fields: tuple[str, ...], place: str) -> str:
    for field in fields:
        if field in row:
            return field
    raise DatasetError(
        f"{place}: none of the fields {', '.join(map(repr, fields))}; it has: {', '.join(row) or 'none'}"
    )


def _as_text(value: Any, field: str, place: str) -> str:
    if isinstance(value, str) and value.strip():
        return value.strip()
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise DatasetError(f"{place}, field {field!r}: {value!r}; it must be text that is not empty, or a finite number")
