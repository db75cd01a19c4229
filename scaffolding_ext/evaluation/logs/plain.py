"""Read plain rows: a question with samples, or one sample each (schema in `docs/tune.md`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from scaffolding_ext.answers import extract
from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.logs.samples import NO_ANSWER, ChainProbes, Log, LoggedQuestion, LoggedSample, merged
from scaffolding_ext.evaluation.logs.stated import stated
from scaffolding_ext.evaluation.run.jsonl import Row


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Text = Annotated[str, BeforeValidator(_as_text)]
Tokens = Annotated[int, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, le=1)]


class _Row(BaseModel):
    model_config = ConfigDict(extra="ignore", populate_by_name=True, allow_inf_nan=False)


class _Probe(_Row):
    tokens: Tokens = Field(validation_alias=AliasChoices("tokens", "position"))
    answer: Text | None = None
    probability: Probability | None = Field(None, validation_alias=AliasChoices("probability", "p"))
    hedged: bool = False
    answer_tokens: Tokens = 0
    forced: Text | None = None


class _Sample(_Row):
    answer: Text | None = None
    correct: bool | None = Field(None, validation_alias=AliasChoices("correct", "correct_by_source"))
    tokens: Tokens | None = Field(None, validation_alias=AliasChoices("output_tokens", "tokens", "num_tokens"))
    seconds: Annotated[float, Field(ge=0)] | None = None
    logprob: Annotated[float, Field(le=0)] | None = None
    ppl: list[Annotated[float, Field(ge=1, allow_inf_nan=True)] | None] | None = None  # of some chunk of tokens
    reward: Probability | None = Field(None, validation_alias=AliasChoices("reward", "prm_score"))
    text: str | None = None
    probes: list[_Probe] | None = None


class _Named(_Row):
    id: Text = Field(validation_alias=AliasChoices("id", "question", "problem"))
    target: Text | None = Field(None, validation_alias=AliasChoices("target", "answer"))
    run: Text = Field("", validation_alias=AliasChoices("run", "set"))
    task: Text = ""


def _as_sample(value: Any) -> Any:
    if value is None:  # a response that failed
        return {"answer": None}
    return {"answer": stated(str(value))} if isinstance(value, str | int | float) else value


class _Question(_Named):
    samples: Annotated[list[Annotated[_Sample, BeforeValidator(_as_sample)]], Field(min_length=1)]


class _SampleRow(_Named, _Sample):
    target: Text | None = None


def read_plain(rows: Iterable[Row], name: str, fingerprint: str) -> Log:
    """Read rows that are all of one kind: with `samples`, or with the `text` or `answer` of one.

    Raises:
        DatasetError: A row is of no known kind, or a field is missing or wrong; it names file, line, and the given and
            allowed values.
    """
    kinds = {"samples": _of_samples, "text": _of_rows, "answer": _of_rows}
    every = list(rows)
    if not every:
        raise DatasetError(f"{name} is empty; give one question per line, with its `samples`")
    kind = next((key for key in kinds if key in every[0].value), None)
    if kind is None:
        problem = every[0].problem or f"has the fields {', '.join(sorted(every[0].value)) or 'of an empty object'}"
        raise DatasetError(
            f"{name}, line {every[0].number}: {problem}; a row of a recording has `samples` (a question with all "
            "its samples), or `text` or `answer` (one sample)"
        )
    for row in every:
        if row.problem is not None:
            raise DatasetError(f"{name}, line {row.number}: {row.problem}")
        if kind not in row.value:
            raise DatasetError(
                f"{name}, line {row.number}: has no `{kind}`, but line {every[0].number} has; all rows of a file "
                "must be of one kind"
            )
    return Log(name, fingerprint, kinds[kind](every, name))


def _parsed(kind: type[BaseModel], row: Row, name: str) -> Any:
    try:
        return kind.model_validate(row.value)
    except ValidationError as error:
        found = error.errors()[0]
        field = ".".join(map(str, found["loc"]))
        given = "" if found["type"] == "missing" else f" is {str(found['input'])[:60]!r}:"
        raise DatasetError(f"{name}, line {row.number}: {field}{given} {found['msg'].lower()}") from None


def _of_samples(rows: Sequence[Row], name: str) -> list[LoggedQuestion]:
    questions = []
    for row in rows:
        found: _Question = _parsed(_Question, row, name)
        for sample, given in zip(found.samples, row.value["samples"], strict=True):
            if not sample.model_fields_set & {"answer", "text"}:
                fields = ", ".join(given) or "of an empty object"
                raise DatasetError(
                    f"{name}, line {row.number}: a sample has the fields {fields}; it needs `answer` (null without "
                    "one), or a `text` to read the answer from"
                )
        samples = [_sample(each) for each in found.samples]
        questions.append(LoggedQuestion(found.id, found.target, samples, found.run, found.task))
    return questions


def _of_rows(rows: Sequence[Row], name: str) -> list[LoggedQuestion]:
    """Group samples by run, task and question."""
    found: list[_SampleRow] = [_parsed(_SampleRow, row, name) for row in rows]
    return merged((LoggedQuestion(each.id, each.target, [_sample(each)], each.run, each.task) for each in found), name)


def _sample(found: _Sample) -> LoggedSample:
    answer = found.answer
    if answer is None and found.text is not None:
        answer = extract(found.text)
    logprob = found.logprob
    if logprob is None and found.ppl:
        logs = [-math.log(each) for each in found.ppl if each is not None]
        logprob = sum(logs) / len(logs) if logs else None
    tokens, probes = found.tokens, None
    if found.probes:
        tokens = found.probes[-1].tokens if tokens is None else tokens
        probes = _probed(found.probes, tokens)
    return LoggedSample(answer, found.correct, tokens, found.seconds, logprob, found.reward, probes)


def _probed(rows: Sequence[_Probe], length: int) -> ChainProbes:
    probes = []
    for row in rows:
        logprobs = None if row.probability is None else (math.log(max(row.probability, 1e-300)),)
        prefix, response = Prefix(row.tokens, "", None, None), row.answer or ""
        probes.append(Probe(prefix, row.answer, NO_ANSWER, row.hedged, response, answer_logprobs=logprobs))
    forced = [row.answer if row.forced is None else row.forced for row in rows]
    tokens = np.array([row.answer_tokens for row in rows], dtype=np.int64)
    return ChainProbes(probes, np.full(len(rows), NO_ANSWER), tokens, tokens, length, forced_answers=forced)
