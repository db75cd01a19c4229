"""Load datasets: files, Hugging Face, reasoning-gym, the embedded grammar. All rows are checked before a run starts."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from scaffolding_ext.errors import DatasetError, MissingDependencyError
from scaffolding_ext.evaluation.run.formats import Example, samples_of
from scaffolding_ext.evaluation.run.gym import gym_problems
from scaffolding_ext.evaluation.run.jsonl import Row, read_csv, read_rows
from scaffolding_ext.tinylm.grammar import KINDS, sample_problem

__all__ = ["EMBEDDED", "Example", "embedded_problems", "load_dataset", "parse_limit", "read_jsonl"]

EMBEDDED = "tinylm:held_out"
HUB, GYM = "hf:", "reasoning_gym:"
_DEFAULT_NUM_SAMPLES = 100
_MAX_NUM_SAMPLES = 100_000  # of embedded problems; drawing them takes a minute
_MAX_DRAWS_PER_SAMPLE = 100  # draws that may repeat an earlier problem
_OF_ROWS = ("columns", "format", "skip_bad_rows")
_TAKEN = {  # by the prefix of a source, its options
    EMBEDDED: ("num_samples", "seed", "kind"),
    GYM: ("num_samples", "seed", "args"),
    HUB: (*_OF_ROWS, "subset", "split"),
    "": _OF_ROWS,
}


class HubDataset(NamedTuple):
    """Location of a known dataset's problems, and their format."""

    format: str
    split: str
    subset: str | None = None


HUB_DATASETS = {
    "HuggingFaceH4/MATH-500": HubDataset("math500", "test"),
    "HuggingFaceH4/aime_2024": HubDataset("aime", "train"),
    "math-ai/aime25": HubDataset("aime", "test"),
    "AI-MO/aimo-validation-aime": HubDataset("aime", "train"),
    "AI-MO/aimo-validation-amc": HubDataset("amc", "train"),
    "openai/gsm8k": HubDataset("gsm8k", "test", "main"),
    "cais/mmlu": HubDataset("multiple_choice", "test", "all"),
    "TIGER-Lab/MMLU-STEM": HubDataset("multiple_choice", "test"),
    "TIGER-Lab/MMLU-Pro": HubDataset("multiple_choice", "test"),
    "allenai/ai2_arc": HubDataset("multiple_choice", "test", "ARC-Challenge"),
    "Idavidrein/gpqa": HubDataset("gpqa", "train", "gpqa_diamond"),
}
_DEFAULT_SPLIT = "test"


def load_dataset(
    source: str | os.PathLike[str],
    *,
    num_samples: int | None = None,
    seed: int = 0,
    kind: str | None = None,
    limit: str | None = None,
    columns: Mapping[str, str | None] | None = None,
    skip_bad_rows: bool = False,
    format: str | None = None,
    subset: str | None = None,
    split: str | None = None,
    args: Mapping[str, Any] | None = None,
) -> list[Example]:
    """Load a dataset.

    Args:
        source: Path of a JSONL or CSV file; `hf:NAME`, a dataset of Hugging Face or a folder that its library reads;
            `reasoning_gym:TASK`; or `tinylm:held_out`.
        num_samples: Number of problems to draw, if they are drawn; None means 100.
        seed: Seed of drawn problems, or of shuffled options.
        kind: Draw only embedded problems of this kind; None draws all five.
        limit: `"N"`, the first N samples, or `"A-B"`, samples A to B.
        columns: Of rows, like `skip_bad_rows` and `format`; see `read_jsonl`.
        format: None takes that of a known dataset of Hugging Face.
        split: Of a dataset of Hugging Face; None takes that of a known one, else `test`.
        args: Configuration of a reasoning-gym task.

    Raises:
        DatasetError: The source, a row, or the limit is unusable.
        MissingDependencyError: The library of the source is not installed.
    """
    name = os.fspath(source)
    wanted = None if limit is None else parse_limit(limit)
    if name.startswith("tinylm:") and name != EMBEDDED:
        raise DatasetError(f"unknown embedded dataset {name!r}; known: {EMBEDDED}")
    given = {"num_samples": num_samples, "kind": kind, "args": args, "subset": subset, "split": split}
    given |= {"columns": columns, "format": format, "skip_bad_rows": skip_bad_rows}
    taken = next(keys for prefix, keys in _TAKEN.items() if name.startswith(prefix))
    if foreign := [key for key, value in given.items() if value and key not in taken]:
        raise DatasetError(f"{name} takes no {' and no '.join(foreign)}; it takes {', '.join(taken)}, and limit")
    drawn = _DEFAULT_NUM_SAMPLES if num_samples is None else num_samples
    if not 1 <= drawn <= _MAX_NUM_SAMPLES:
        raise DatasetError(f"num_samples is {drawn}; {name} gives 1 to {_MAX_NUM_SAMPLES:,} problems")
    if name == EMBEDDED:
        samples = embedded_problems(drawn, seed, kind)
    elif name.startswith(GYM):
        samples = gym_problems(name.removeprefix(GYM), drawn, seed, args or {})
    elif name.startswith(HUB):
        hub = name.removeprefix(HUB)
        format = format_of(name, format)
        rows = read_hub(hub, subset, split)
        samples = samples_of(rows, name, columns, format, skip_bad_rows=skip_bad_rows, place="row", seed=seed)
    else:
        samples = read_jsonl(name, columns, skip_bad_rows=skip_bad_rows, format=format, seed=seed)
    if wanted is None:
        return samples
    if wanted.start >= len(samples):
        raise DatasetError(f"limit {limit} leaves nothing: {name} has {len(samples)} questions")
    return samples[wanted]


def format_of(source: str, format: str | None) -> str | None:
    """Return the given format, or that of a known dataset of Hugging Face."""
    known = HUB_DATASETS.get(source.removeprefix(HUB)) if source.startswith(HUB) else None
    return format or (None if known is None else known.format)


def parse_limit(limit: str) -> slice:
    """Parse `"N"` or `"A-B"`, counted from 1, both ends included.

    Raises:
        DatasetError: It is neither, or it is empty.
    """
    match = re.fullmatch(r"(?:(\d{1,18})-)?(\d{1,18})", limit.strip(), re.ASCII)
    first, last = (int(match[1] or 1), int(match[2])) if match else (0, 0)
    if not 1 <= first <= last:
        raise DatasetError(f"limit is {limit!r}; write N for the first N questions, or A-B with 1 <= A <= B")
    return slice(first - 1, last)


def embedded_problems(num_samples: int, seed: int = 0, kind: str | None = None) -> list[Example]:
    """Draw distinct held-out problems; a larger `num_samples` extends the same list.

    Raises:
        DatasetError: The kind is unknown, or has too few different problems.
    """
    if kind is not None and kind not in KINDS:
        raise DatasetError(f"unknown kind {kind!r} of {EMBEDDED}; known: {', '.join(KINDS)}")
    rng = random.Random(seed)
    problems: dict[str, Example] = {}
    for _ in range(num_samples * _MAX_DRAWS_PER_SAMPLE):
        if len(problems) == num_samples:
            break
        problem = sample_problem(rng, "held_out", kind)
        name = f"held_out-{seed}-{len(problems)}"
        problems.setdefault(problem.question, Example(name, problem.question, problem.answer, problem.kind))
    if len(problems) < num_samples:
        raise DatasetError(f"{EMBEDDED} gave {len(problems)} different problems, not {num_samples}; request fewer")
    return list(problems.values())


def read_jsonl(
    path: str | os.PathLike[str],
    columns: Mapping[str, str | None] | None = None,
    *,
    skip_bad_rows: bool = False,
    format: str | None = None,
    seed: int = 0,
) -> list[Example]:
    """Read a JSONL file (or .jsonl.gz) with one object per line, or a CSV file with a header.

    Fields: `problem`, `question` or `prompt`; `answer` or `target` (text or a number); `id` (by default the line's
    number); `kind`; a `context` or `passage` comes before the question. Empty lines are ignored, other fields are in
    `Example.unread`.

    Args:
        columns: The file's names for `prompt`, `context`, `target`, `id` and `kind`, if they differ.
        skip_bad_rows: Skip unusable rows with a warning instead of refusing the file.
        format: A key of `formats.FORMATS`; None takes the names above.

    Raises:
        DatasetError: The file cannot be read, has no usable rows, or a row is unusable; it names file, line and field
            of all such rows, 20 at most.
    """
    name = os.fspath(path)
    if os.path.isdir(name):
        raise DatasetError(f"{name} is a folder: name a file of it, or write hf:{name} for a folder of Hugging Face's")
    rows = read_csv(name) if name.endswith(".csv") else read_rows(name)
    return samples_of(rows, name, columns, format, skip_bad_rows=skip_bad_rows, seed=seed)


def read_hub(name: str, subset: str | None = None, split: str | None = None) -> Iterator[Row]:
    """Return the rows of a dataset.

    Args:
        name: As in `datasets.load_dataset`: a dataset of Hugging Face, or a folder with files that its library reads.
        subset: One of its configurations; None takes that of a known dataset, else the default.
        split: One of its splits; None takes that of a known dataset, else `test`.

    Raises:
        DatasetError: It cannot be loaded: it is unknown, or cannot be reached.
        MissingDependencyError: `datasets` is not installed.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingDependencyError("datasets", "problems") from error
    known = HUB_DATASETS.get(name, HubDataset("", _DEFAULT_SPLIT))
    try:
        loaded = datasets.load_dataset(name, subset or known.subset, split=split or known.split)
    except Exception as error:  # the network, the hub and its readers may raise anything
        raise DatasetError(
            f"cannot load the dataset {name} from Hugging Face: {type(error).__name__}: {error}; if the hub cannot "
            "be reached, name a JSONL file, or a folder as hf:FOLDER"
        ) from error
    return (Row(number, dict(value), None, True) for number, value in enumerate(loaded, 1))
