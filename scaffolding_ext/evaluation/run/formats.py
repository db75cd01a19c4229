"""Formats of data sets: one function each, from a row to a question, or a refusal that names the field."""

from __future__ import annotations

import math
import random
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, NamedTuple

from scaffolding_ext import require
from scaffolding_ext.documents import has_surrogate
from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.run.jsonl import Row
from scaffolding_ext.evaluation.run.scoring import LETTERS, Score

_MAX_PROBLEMS = 20  # listed in an error
_SHOWN_CHARACTERS = 60
_ROLES = ("prompt", "context", "target", "id", "kind")
_CONTEXT = ("context", "passage", "article", "story", "paragraph")
_OPTIONS = ("choices", "options", "Incorrect Answer 1")


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


class Fields:
    """The fields of one row, by their roles.

    Args:
        columns: The dataset's own names of roles, which replace a format's.
        seed: Of the order of shuffled options.

    Raises:
        DatasetError: By each method: the row lacks a field, or it is no text; the message continues the row's number.
    """

    def __init__(self, row: Row, columns: Mapping[str, str | None], seed: int) -> None:
        if row.problem is not None:
            raise DatasetError(f": {row.problem}")
        self.number, self.seed = row.number, seed
        self._row, self._columns, self._read = row.value, columns, set[str]()

    def example(
        self,
        prompt: Sequence[str],
        target: Sequence[str],
        *,
        context: Sequence[str] = (),
        id: Sequence[str] = ("id",),
        kind: Sequence[str] = (),
        read: Callable[[str], str] = str,
    ) -> Example:
        """Return the question of a row.

        Args:
            prompt: Possible names of its field, as for the next four roles. A context comes before the prompt.
            read: Parses the target's text; a ValueError says what it should be.
        """
        question, name = self.question(prompt, context), self.name("target", target)
        with _in_field(name, self._row[name]):
            answer = read(_as_text(self._row[name], name))
        found = Example(self.id(id), question, answer, self.optional("kind", kind))
        ignored = next((field for field in _OPTIONS if self._row.get(field) and field not in self._read), None)
        if ignored is not None:
            raise DatasetError(
                f" has the field {ignored!r}, whose options would be ignored: set dataset.format to multiple_choice "
                "(or gpqa), as with --set dataset.format=multiple_choice, or remove the field"
            )
        return found._replace(unread=tuple(field for field in self._row if field not in self._read))

    def choice(
        self, id: str, question: str, kind: str | None, options: Sequence[str], right: int, *, shuffles: bool = False
    ) -> Example:
        """Return a multiple-choice question, whose target is a letter; options are shuffled by seed and id."""
        order = list(range(len(options)))
        if shuffles:
            random.Random(f"{self.seed}:{id}").shuffle(order)
        shown = tuple(options[place] for place in order)
        lines = [f"{letter}) {option}" for letter, option in zip(LETTERS, shown, strict=False)]
        prompt = "\n".join([question.rstrip(), "", *lines, "", "Answer with the letter of the right option."])
        return Example(id, prompt, LETTERS[order.index(right)], kind, options=shown)

    def question(self, prompt: Sequence[str], context: Sequence[str] = ()) -> str:
        name = self.name("prompt", prompt)
        if not isinstance(self._row[name], str):
            raise DatasetError(f", field {name!r}: {_shortened(self._row[name])}; it must be text that is not empty")
        _as_text(self._row[name], name)  # refuses an empty text; the question keeps its spaces
        question: str = self._row[name]
        before = self._columns.get("context") or next(filter(self._row.get, context), None)
        self._read.update(context)
        if before is None:
            return question
        return f"{_as_text(self._row[self.name('context', (before,))], before)}\n\n{question}"

    def id(self, names: Sequence[str]) -> str:
        return self.optional("id", names) or str(self.number)

    def optional(self, role: str, names: Sequence[str]) -> str | None:
        names = self._names(role, names)
        name = next((name for name in names if self._row.get(name) is not None), None)
        return None if name is None else _as_text(self._row[name], name)

    def name(self, role: str, names: Sequence[str]) -> str:
        """Return the name under which the row has a required field."""
        names = self._names(role, names)
        found = [name for name in names if name in self._row]
        if not found:
            one = f"no field {names[0]!r}" if len(names) == 1 else f"none of the fields {', '.join(map(repr, names))}"
            raise DatasetError(
                f": {one}; it has: {', '.join(self._row) or 'none'}; name the right one in dataset.columns"
            )
        if any(self._row[name] != self._row[found[0]] for name in found[1:]):
            raise DatasetError(f": has both {' and '.join(map(repr, found))}; name the right one in dataset.columns")
        return found[0]

    def get(self, name: str) -> Any:
        return self._row.get(name)

    def _names(self, role: str, names: Sequence[str]) -> Sequence[str]:
        own = self._columns.get(role)
        names = (own,) if own else names
        self._read.update(names)
        return names


def plain(row: Fields) -> Example:
    """Read a row with the usual names."""
    prompt = ("problem", "question", "prompt")
    return row.example(prompt, ("answer", "target"), context=_CONTEXT, kind=("kind", "task_type"))


def math500(row: Fields) -> Example:
    return row.example(("problem",), ("answer",), id=("unique_id", "id"), kind=("subject", "type"))


def aime(row: Fields) -> Example:
    prompt = ("problem", "Problem", "question", "Question")
    return row.example(prompt, ("answer", "Answer"), id=("id", "ID"), read=_up_to_999)


def amc(row: Fields) -> Example:
    return row.example(("problem", "question"), ("answer",), read=_number)


def gsm8k(row: Fields) -> Example:
    return row.example(("question",), ("answer",), read=_behind_hashes)._replace(answers_anyhow=True)


def multiple_choice(row: Fields) -> Example:
    """Read MMLU (`choices`, an index), MMLU-Pro (`options`, a letter) or ARC (`choices`, labelled texts)."""
    question = row.question(("question", "problem", "prompt"), _CONTEXT)
    name = row.name("target", ("answer", "answerKey", "target"))
    with _in_field(name, right := row.get(name)):
        given: Any = row.get("choices") if row.get("choices") is not None else row.get("options")
        labels: list[str] = []
        if isinstance(given, Mapping):
            labels, given = [str(label) for label in given.get("label", ())], given.get("text")
        if not isinstance(given, Sequence) or isinstance(given, str):
            raise ValueError("the row has no list of options in 'choices' or 'options'")
        options = [str(option).strip() for option in given]
        labels = labels or list(LETTERS[: len(options)])
        if not 2 <= len(options) <= len(LETTERS) or len(labels) != len(options) or not all(options):
            raise ValueError(
                f"the row has {len(options)} options; a question has 2 to {len(LETTERS)}, none of them empty"
            )
        place = _place_of(right, labels, options)
    return row.choice(
        row.id(("id", "question_id")), question, row.optional("kind", ("kind", "subject", "category")), options, place
    )


def gpqa(row: Fields) -> Example:
    """Read GPQA: the right answer and three wrong ones, each in a column."""
    name = row.name("target", ("Correct Answer",))
    wrong = [each for number in range(1, 4) if (each := row.get(f"Incorrect Answer {number}")) is not None]
    if not wrong:
        raise DatasetError(f", field {name!r}: the row has no 'Incorrect Answer 1' to 'Incorrect Answer 3'")
    options = [str(option).strip() for option in (row.get(name), *wrong)]
    kind = row.optional("kind", ("High-level domain", "Subdomain"))
    return row.choice(row.id(("Record ID",)), row.question(("Question",)), kind, options, 0, shuffles=True)


FORMATS: dict[str, Callable[[Fields], Example]] = {
    "math500": math500,
    "aime": aime,
    "amc": amc,
    "gsm8k": gsm8k,
    "multiple_choice": multiple_choice,
    "gpqa": gpqa,
}
UNITS_IMPLIED = ("gsm8k",)  # formats whose questions name the unit, so that 5 cm is right if the target is 5


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
        format: Of the benchmark, a key of `FORMATS`; None takes `plain`.
        skip_bad_rows: Skip unusable rows with a warning instead of refusing the dataset.
        place: Unit of a row's number.
        seed: Of the order of options, if the format shuffles them.

    Raises:
        DatasetError: There are no usable rows, or a row is unusable; it names dataset, row and field of all such rows,
            20 at most.
        ConfigError: The format is unknown.
    """
    read = FORMATS[require.one_of("dataset.format", format, FORMATS)] if format else plain
    if unknown := ", ".join(sorted(set(columns or ()) - set(_ROLES))):
        raise DatasetError(f"columns has {unknown}; it may have {', '.join(_ROLES)}")
    samples: dict[str, Example] = {}
    numbers: dict[str, int] = {}
    problems: list[tuple[int, str]] = []
    for row in rows:
        try:
            sample = read(Fields(row, columns or {}, seed))
            if sample.id in samples:
                raise DatasetError(
                    f", field 'id': {sample.id!r} is the id of an earlier row ({place} {numbers[sample.id]}); ids must "
                    "be unique, and a row without one is named by its number"
                )
            samples[sample.id], numbers[sample.id] = sample, row.number
        except DatasetError as error:
            problems.append((row.number, str(error)))
            if len(problems) == _MAX_PROBLEMS and not skip_bad_rows:
                break
    listed = _listed(problems[:_MAX_PROBLEMS], place)
    if problems and not skip_bad_rows:
        raise DatasetError(f"{name}, {listed}{'; stopped there' if len(problems) == _MAX_PROBLEMS else ''}")
    if not samples:
        raise DatasetError(f"the dataset {name} has no rows{f' that can be used: {listed}' if problems else ''}")
    if problems:
        num_rows = len(problems) + len(samples)
        warnings.warn(f"{name}: {len(problems)} of {num_rows} rows are skipped: {listed}", stacklevel=2)
    return list(samples.values())


def _listed(problems: Iterable[tuple[int, str]], place: str) -> str:
    """Problems in order, each once with the numbers of its rows."""
    numbers: dict[str, list[int]] = {}
    for number, problem in problems:
        numbers.setdefault(problem, []).append(number)
    return "; ".join(
        f"{place}{'s' * (len(each) > 1)} {', '.join(map(str, each))}{problem}" for problem, each in numbers.items()
    )


@contextmanager
def _in_field(name: str, value: Any) -> Iterator[None]:
    """Add a field and its value to a ValueError about them."""
    try:
        yield
    except DatasetError:  # it names the field
        raise
    except ValueError as error:
        raise DatasetError(f", field {name!r}: {_shortened(value)}; {error}") from error


def _place_of(right: Any, labels: Sequence[str], options: Sequence[str]) -> int:
    is_index = isinstance(right, int) and not isinstance(right, bool) and not labels[0].isdecimal()
    if is_index and 0 <= right < len(options):
        return int(right)
    for known in (labels, options):
        if known.count(str(right).strip()) == 1:
            return known.index(str(right).strip())
    raise ValueError(f"it must name one of the {len(options)} options: by its index from 0, its letter or its text")


def _behind_hashes(text: str) -> str:
    found = re.search(r"####\s*(\S[^\n]*?)\s*\Z", text)
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


def _as_text(value: Any, field: str) -> str:
    if isinstance(value, str) and value.strip() and not has_surrogate(value):
        return value.strip()
    if isinstance(value, float) and math.isfinite(value):
        return format(Decimal(repr(value)), "f").removesuffix(".0")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    allowed = "it must be text that is not empty, or a finite number"
    if isinstance(value, str) and value.strip():
        allowed = "half of a surrogate pair is not text"
    raise DatasetError(f", field {field!r}: {_shortened(value)}; {allowed}")


def _shortened(value: Any) -> str:
    shown = ascii(value)
    return shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}..."
