"""Turn dataset rows into samples, given each benchmark's field names and answer formats."""

from __future__ import annotations

import math
import random
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from scaffolding_ext import require
from scaffolding_ext.documents import has_surrogate
from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.run.jsonl import Row
from scaffolding_ext.evaluation.run.scoring import LETTERS, Score

_MAX_PROBLEMS = 20  # listed in an error
_SHOWN_CHARACTERS = 60
_OPTIONS = ("choices", "options")
_BEHIND_HASHES = re.compile(r"####\s*(\S[^\n]*?)\s*\Z")


class Example(NamedTuple):
    """One question.

    Attributes:
        id: Unique in its dataset; the sample's seeds derive from it.
        prompt: The user's question, with the options of a multiple-choice question.
        target: The right answer; of a multiple-choice question its letter.
        verify: Scores an answer, if the dataset has a verifier; None compares with the target.
        options: Option texts of a multiple-choice question, lettered from A.
        answers_anyhow: Take the last number of an output without a box or answer phrase as its answer.
        unread: Fields of the row that are in neither prompt nor target.
    """

    id: str
    prompt: str
    target: str
    kind: str | None = None
    verify: Callable[[str | None], Score] | None = None
    options: tuple[str, ...] = ()
    answers_anyhow: bool = False
    unread: tuple[str, ...] = ()


class Choices(NamedTuple):
    """Options of a multiple-choice row, and the index of the right one."""

    options: list[str]
    right: int


class Format(NamedTuple):
    """Format of a benchmark's rows.

    Attributes:
        fields: Possible field names of prompt, target, id and kind, and of a context before the prompt.
        read_target: Parses the target from its field's text; a ValueError says what it should be.
        read_choices: Parses the options of a row whose target is in a field; None if rows have no options. A ValueError
            says what is wrong.
        shuffles: Shuffle options by seed and id, because the right one comes first in the row.
        units_implied: Questions name the unit, so that 5 cm is right if the target is 5.
    """

    fields: Mapping[str, tuple[str, ...]]
    read_target: Callable[[str], str] = str
    read_choices: Callable[[Mapping[str, Any], str], Choices] | None = None
    shuffles: bool = False
    units_implied: bool = False
    answers_anyhow: bool = False


def _behind_hashes(text: str) -> str:
    found = _BEHIND_HASHES.search(text)
    if found is None:
        raise ValueError("the answer must follow #### at the end")
    return found[1].replace(",", "")


def _up_to_999(text: str) -> str:
    if not re.fullmatch(r"\d{1,3}", text, re.ASCII):
        raise ValueError("it must be a whole number from 0 to 999")
    return str(int(text))


def _number(text: str) -> str:
    try:
        float(text)
    except ValueError:
        raise ValueError("it must be a number") from None
    return text


def _choices(row: Mapping[str, Any], target: str) -> Choices:
    """Read options of MMLU (`choices`, an index), MMLU-Pro (`options`, a letter) or ARC (`choices`, labelled texts)."""
    given: Any = next((row[name] for name in _OPTIONS if row.get(name) is not None), None)
    labels: list[str] = []
    if isinstance(given, Mapping):
        labels = [str(label) for label in given.get("label", ())]
        given = given.get("text")
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise ValueError(f"the row has no list of options in {' or '.join(map(repr, _OPTIONS))}")
    options = [str(option).strip() for option in given]
    labels = labels or list(LETTERS[: len(options)])
    if not 2 <= len(options) <= len(LETTERS) or len(labels) != len(options) or not all(options):
        raise ValueError(f"the row has {len(options)} options; a question has 2 to {len(LETTERS)}, none of them empty")
    right = row[target]
    written = str(right).strip()
    by_number = labels[0].isdecimal()
    if isinstance(right, int) and not isinstance(right, bool) and 0 <= right < len(options) and not by_number:
        return Choices(options, right)
    for known in (labels, options):
        if known.count(written) == 1:
            return Choices(options, known.index(written))
    raise ValueError(f"it must name one of the {len(options)} options: by its index from 0, its letter or its text")


def _right_first(row: Mapping[str, Any], target: str) -> Choices:
    """Parse the options of GPQA: the right answer and three wrong ones, each in a column."""
    wrong = [row[name] for name in row if name.startswith("Incorrect Answer") and row[name] is not None]
    if not wrong:
        raise ValueError("the row has no 'Incorrect Answer 1' to 'Incorrect Answer 3'")
    return Choices([str(option).strip() for option in (row[target], *wrong)], 0)


def _asked_with(question: str, options: Sequence[str]) -> str:
    lines = [f"{letter}) {option}" for letter, option in zip(LETTERS, options, strict=False)]
    return "\n".join([question.rstrip(), "", *lines, "", "Answer with the letter of the right option."])


_CONTEXT = ("context", "passage", "article", "story", "paragraph")
_ANY = Format(
    {
        "prompt": ("problem", "question", "prompt"),
        "context": _CONTEXT,
        "target": ("answer", "target"),
        "id": ("id",),
        "kind": ("kind", "task_type"),
    }
)
FORMATS = {
    "math500": Format(
        {"prompt": ("problem",), "target": ("answer",), "id": ("unique_id", "id"), "kind": ("subject", "type")}
    ),
    "aime": Format(
        {
            "prompt": ("problem", "Problem", "question", "Question"),
            "target": ("answer", "Answer"),
            "id": ("id", "ID"),
            "kind": (),
        },
        _up_to_999,
    ),
    "amc": Format({"prompt": ("problem", "question"), "target": ("answer",), "id": ("id",), "kind": ()}, _number),
    "gsm8k": Format(
        {"prompt": ("question",), "target": ("answer",), "id": ("id",), "kind": ()},
        _behind_hashes,
        units_implied=True,
        answers_anyhow=True,
    ),
    "multiple_choice": Format(
        {
            "prompt": ("question", "problem", "prompt"),
            "context": _CONTEXT,
            "target": ("answer", "answerKey", "target"),
            "id": ("id", "question_id"),
            "kind": ("kind", "subject", "category"),
        },
        read_choices=_choices,
    ),
    "gpqa": Format(
        {
            "prompt": ("Question",),
            "target": ("Correct Answer",),
            "id": ("Record ID",),
            "kind": ("High-level domain", "Subdomain"),
        },
        read_choices=_right_first,
        shuffles=True,
    ),
}


def samples_of(
    rows: Iterable[Row],
    name: str,
    columns: Mapping[str, str | None] | None = None,
    format: str | None = None,
    *,
    skip_bad_rows: bool = False,
    place: str = "line",
    seed: int = 0,
) -> list[Example]:
    """Convert a dataset's rows to samples.

    Args:
        columns: The dataset's names for `prompt`, `context`, `target`, `id` and `kind`, if they differ.
        format: Of the benchmark, a key of `FORMATS`, or None.
        skip_bad_rows: Skip unusable rows with a warning instead of refusing the dataset.
        place: Unit of a row's number.
        seed: Of the order of options, if the format shuffles them.

    Raises:
        DatasetError: There are no usable rows, or a row is unusable; it names dataset, row and field of all such rows,
            20 at most.
        ConfigError: The format is unknown.
    """
    form = FORMATS[require.one_of("dataset.format", format, FORMATS)] if format else _ANY
    fields = _fields_of(form, columns or {})
    samples: dict[str, Example] = {}
    places: dict[str, str] = {}
    problems: list[tuple[int, str]] = []
    for row in rows:
        try:
            sample = _sample(row, fields, form, seed)
            written = _optional(row.value, fields["id"]) is not None
            if sample.id in samples:
                raise DatasetError(_clash(sample.id, written, fields["id"][0], places[sample.id]))
            samples[sample.id] = sample
            places[sample.id] = f"{place} {row.number}" + (
                "" if written else ", which has no id and is named by its number"
            )
        except DatasetError as error:
            problems.append((row.number, str(error)))
            if len(problems) == _MAX_PROBLEMS and not skip_bad_rows:
                break
    if problems and not skip_bad_rows:
        more = "; stopped there" if len(problems) == _MAX_PROBLEMS else ""
        raise DatasetError(f"{name}, {_listed(problems, place)}{more}")
    if not samples:
        raise DatasetError(
            f"the dataset {name} has no rows"
            + (f" that can be used: {_listed(problems[:1], place)}" if problems else "")
        )
    if problems:
        shown = _listed(problems[:_MAX_PROBLEMS], place)
        warnings.warn(
            f"{name}: {len(problems)} of {len(problems) + len(samples)} rows are skipped: {shown}", stacklevel=2
        )
    return list(samples.values())


def _listed(problems: Iterable[tuple[int, str]], place: str) -> str:
    """Problems in order, each once with the numbers of its rows."""
    numbers: dict[str, list[int]] = {}
    for number, problem in problems:
        numbers.setdefault(problem, []).append(number)
    return "; ".join(
        f"{place}{'s' * (len(each) > 1)} {', '.join(map(str, each))}{problem}" for problem, each in numbers.items()
    )


def _fields_of(form: Format, columns: Mapping[str, str | None]) -> dict[str, tuple[str, ...]]:
    unknown = ", ".join(sorted(set(columns) - set(form.fields)))
    if unknown:
        raise DatasetError(f"columns has {unknown}; it may have {', '.join(form.fields)}")
    return {role: (own,) if (own := columns.get(role)) else known for role, known in form.fields.items()}


def _sample(row: Row, fields: Mapping[str, tuple[str, ...]], form: Format, seed: int) -> Example:
    """Convert a row to a sample; error messages continue the line's number."""
    if row.problem is not None:
        raise DatasetError(f": {row.problem}")
    prompt, target = (_present(row.value, fields[role]) for role in ("prompt", "target"))
    question = row.value[prompt]
    if not isinstance(question, str):
        raise DatasetError(f", field {prompt!r}: {question!r}; it must be text that is not empty")
    _as_text(question, prompt)
    contexts = fields.get("context", ())
    context = next((name for name in contexts if row.value.get(name) and name not in (prompt, target)), None)
    if len(contexts) == 1:  # named in `columns`
        context = _present(row.value, contexts)
    if context is not None:
        question = f"{_as_text(row.value[context], context)}\n\n{question}"
    name, kind = (_optional(row.value, fields[role]) for role in ("id", "kind"))
    name = name or str(row.number)
    try:
        if form.read_choices is not None:
            found = form.read_choices(row.value, target)
            return _multiple_choice(name, question, kind, found, seed, form.shuffles)
        answer = form.read_target(_as_text(row.value[target], target))
    except DatasetError:  # it names the field
        raise
    except ValueError as error:
        raise DatasetError(f", field {target!r}: {_shortened(row.value[target])}; {error}") from error
    read = {name for names in fields.values() for name in names}
    options = [*_OPTIONS, "Incorrect Answer 1"]
    ignored = [field for field in options if row.value.get(field) and field not in read]
    if ignored:
        raise DatasetError(
            f" has the field {ignored[0]!r}, whose options would be ignored: set dataset.format to multiple_choice (or "
            "gpqa), as with --set dataset.format=multiple_choice, or remove the field"
        )
    unread = tuple(field for field in row.value if field not in read)
    return Example(name, question, answer, kind, answers_anyhow=form.answers_anyhow, unread=unread)


def _multiple_choice(name: str, question: str, kind: str | None, found: Choices, seed: int, shuffles: bool) -> Example:
    order = list(range(len(found.options)))
    if shuffles:
        random.Random(f"{seed}:{name}").shuffle(order)
    options = tuple(found.options[place] for place in order)
    letter = LETTERS[order.index(found.right)]
    return Example(name, _asked_with(question, options), letter, kind, options=options)


def _present(row: Mapping[str, Any], names: tuple[str, ...]) -> str:
    found = [name for name in names if name in row]
    if not found:
        one = f"no field {names[0]!r}" if len(names) == 1 else f"none of the fields {', '.join(map(repr, names))}"
        raise DatasetError(f": {one}; it has: {', '.join(row) or 'none'}; name the right one in dataset.columns")
    if any(row[name] != row[found[0]] for name in found[1:]):
        raise DatasetError(f": has both {' and '.join(map(repr, found))}; name the right one in dataset.columns")
    return found[0]


def _optional(row: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    name = next((name for name in names if row.get(name) is not None), None)
    return None if name is None else _as_text(row[name], name)


def _clash(name: str, written: bool, field: str, earlier: str) -> str:
    if written:
        return f", field {field!r}: {name!r} is the id of an earlier row ({earlier}); ids must be unique"
    return (
        f": has no {field!r} and is named by its number, but {name!r} is the id of an earlier row ({earlier}): add one"
    )


def _as_text(value: Any, field: str) -> str:
    if isinstance(value, str) and value.strip() and not has_surrogate(value):
        return value.strip()
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() else format(Decimal(repr(value)), "f")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    allowed = "it must be text that is not empty, or a finite number"
    if isinstance(value, str) and value.strip():
        allowed = "half of a surrogate pair is not text"
    raise DatasetError(f", field {field!r}: {_shortened(value)}; {allowed}")


def _shortened(value: Any) -> str:
    shown = ascii(value)
    return shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}..."
