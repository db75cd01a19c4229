"""Datasets: JSONL files, and the embedded grammar's problems. Every row is checked before anything is generated."""

from __future__ import annotations

import math
import os
import random
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from scaffolding_ext.documents import has_surrogate
from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.jsonl import Row, read_rows
from scaffolding_ext.evaluation.scoring import Score
from scaffolding_ext.tinylm.grammar import ALL_KINDS, sample_problem

EMBEDDED = "tinylm:held_out"
FIELDS = {
    "prompt": ("problem", "question", "prompt"),
    "target": ("answer", "target"),
    "id": ("id",),
    "kind": ("kind",),
}  # by what names a dataset's rows may have them
_DEFAULT_NUM_SAMPLES = 100
_MAX_NUM_SAMPLES = 100_000  # of embedded problems; drawing as many takes a minute
_MAX_DRAWS_PER_SAMPLE = 100  # draws that may repeat an earlier problem
_MAX_PROBLEMS = 20  # that an error lists
_SHOWN_CHARACTERS = 60


class Sample(NamedTuple):
    """One question.

    Attributes:
        id: Unique in its dataset; the sample's seeds derive from it.
        prompt: What the user asks.
        target: The right answer.
        kind: What sort of question it is, or None.
        verify: Scores an answer, where the dataset has a verifier of its own; None compares with the target.
    """

    id: str
    prompt: str
    target: str
    kind: str | None = None
    verify: Callable[[str | None], Score] | None = None


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
    columns: Mapping[str, str | None] | None = None,
    skip_bad_rows: bool = False,
) -> list[Sample]:
    """Load a dataset.

    Args:
        source: Path of a JSONL file, or `tinylm:held_out`.
        num_samples: How many embedded problems to draw; None means 100.
        seed: Which embedded problems to draw.
        kind: Draw embedded problems of this kind only; None draws the five that are derived step by step.
        limit: `"N"`, the first N samples, or `"A-B"`, those from the A-th to the B-th.
        columns: As in `read_jsonl`, for a file.
        skip_bad_rows: As in `read_jsonl`, for a file.

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
        samples = read_jsonl(name, columns, skip_bad_rows=skip_bad_rows)
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
    match = re.fullmatch(r"(?:(\d{1,18})-)?(\d{1,18})", limit.strip(), re.ASCII)
    parsed = Limit(int(match[1] or 1), int(match[2])) if match else Limit(0, 0)
    if not 1 <= parsed.first <= parsed.last:
        raise DatasetError(f"limit is {limit!r}; write N for the first N samples, or A-B with 1 <= A <= B")
    return parsed


def embedded_problems(num_samples: int, seed: int = 0, kind: str | None = None) -> list[Sample]:
    """Draw distinct held-out problems; a larger `num_samples` extends the same list.

    Raises:
        DatasetError: The kind is unknown, or it has too few different problems.
    """
    if kind is not None and kind not in ALL_KINDS:
        raise DatasetError(f"unknown kind {kind!r} of {EMBEDDED}; known: {', '.join(ALL_KINDS)}")
    if not 1 <= num_samples <= _MAX_NUM_SAMPLES:
        raise DatasetError(f"num_samples is {num_samples}; {EMBEDDED} gives 1 to {_MAX_NUM_SAMPLES:,} problems")
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


def read_jsonl(
    path: str | os.PathLike[str], columns: Mapping[str, str | None] | None = None, *, skip_bad_rows: bool = False
) -> list[Sample]:
    """Read a JSONL file (or .jsonl.gz) with one object a line.

    Its fields: `problem`, `question` or `prompt`; `answer` or `target` (text or a number); `id` (the line's number
    where there is none); `kind`. Other fields are left alone; empty lines are skipped.

    Args:
        path: The file.
        columns: The file's own names of `prompt`, `target`, `id` and `kind`, for those that it calls otherwise.
        skip_bad_rows: Leave unusable rows out, with a warning, instead of refusing the file.

    Raises:
        DatasetError: The file cannot be read, has no usable rows, or a row is unusable; it names file, line and field
            of all such rows, 20 at most.
    """
    name = os.fspath(path)
    fields = _fields_of(columns or {})
    samples: dict[str, Sample] = {}
    places: dict[str, str] = {}
    problems = []
    for row in read_rows(path):
        try:
            sample = _sample(row, fields)
            written = _optional(row.value, fields["id"]) is not None
            if sample.id in samples:
                raise DatasetError(_clash(sample.id, written, fields["id"][0], places[sample.id]))
            samples[sample.id] = sample
            places[sample.id] = f"line {row.number}" + ("" if written else ", which has no id and goes by its number")
        except DatasetError as error:
            problems.append(f"line {row.number}{error}")
            if len(problems) == _MAX_PROBLEMS and not skip_bad_rows:
                break
    if problems and not skip_bad_rows:
        more = "; no more were looked for" if len(problems) == _MAX_PROBLEMS else ""
        raise DatasetError(f"{name}, {'; '.join(problems)}{more}")
    if not samples:
        raise DatasetError(
            f"the dataset {name} has no rows" + (f" that can be used: {problems[0]}" if problems else "")
        )
    if problems:
        shown = "; ".join(problems[:_MAX_PROBLEMS])
        warnings.warn(
            f"{name}: {len(problems)} of {len(problems) + len(samples)} rows are left out: {shown}", stacklevel=2
        )
    return list(samples.values())


def _fields_of(columns: Mapping[str, str | None]) -> dict[str, tuple[str, ...]]:
    """By what names a row's fields go."""
    unknown = ", ".join(sorted(set(columns) - set(FIELDS)))
    if unknown:
        raise DatasetError(f"columns has {unknown}; it may have {', '.join(FIELDS)}")
    return {role: (own,) if (own := columns.get(role)) else known for role, known in FIELDS.items()}


def _sample(row: Row, fields: Mapping[str, tuple[str, ...]]) -> Sample:
    """The sample of a row; errors begin behind the line's number."""
    if row.problem is not None:
        raise DatasetError(f": {row.problem}")
    prompt, target = (_present(row.value, fields[role]) for role in ("prompt", "target"))
    question = row.value[prompt]
    if not isinstance(question, str):
        raise DatasetError(f", field {prompt!r}: {question!r}; it must be text that is not empty")
    _as_text(question, prompt)
    name, kind = (_optional(row.value, fields[role]) for role in ("id", "kind"))
    return Sample(name or str(row.number), question, _as_text(row.value[target], target), kind)


def _present(row: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """The one of the names that the row has."""
    found = [name for name in names if name in row]
    if not found:
        one = f"no field {names[0]!r}" if len(names) == 1 else f"none of the fields {', '.join(map(repr, names))}"
        raise DatasetError(f": {one}; it has: {', '.join(row) or 'none'}; dataset.columns says which is meant")
    if any(row[name] != row[found[0]] for name in found[1:]):
        raise DatasetError(f": has both {' and '.join(map(repr, found))}; say by dataset.columns which is meant")
    return found[0]


def _optional(row: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    name = next((name for name in names if row.get(name) is not None), None)
    return None if name is None else _as_text(row[name], name)


def _clash(name: str, written: bool, field: str, earlier: str) -> str:
    if written:
        return f", field {field!r}: {name!r} names an earlier row already ({earlier}); ids must be unique"
    return (
        f": has no {field!r} and goes by its number, but {name!r} is the id of an earlier row ({earlier}): give it one"
    )


def _as_text(value: Any, field: str) -> str:
    if isinstance(value, str) and value.strip() and not has_surrogate(value):
        return value.strip()
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    allowed = "it must be text that is not empty, or a finite number"
    if isinstance(value, str) and value.strip():
        allowed = "half of a surrogate pair is no text"
    raise DatasetError(f", field {field!r}: {_shortened(value)}; {allowed}")


def _shortened(value: Any) -> str:
    shown = ascii(value)
    return shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}..."
