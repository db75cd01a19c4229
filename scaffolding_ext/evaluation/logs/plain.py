"""Plain JSONL: a question a line with its samples, or a chain a line with its looks. `docs/tune.md` has the schema."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from scaffolding_ext.answers import extract
from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.logs.graded import LoggedChain, LoggedLook, LoggedQuestion, LoggedSample
from scaffolding_ext.evaluation.run.jsonl import Row

CHUNK_TOKENS = 500  # a chunk of the released draft/target chains, whose true lengths are not recorded


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Text = Annotated[str, BeforeValidator(_as_text)]
Tokens = Annotated[int, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, le=1)]


class _Row(BaseModel):
    model_config = ConfigDict(extra="ignore", populate_by_name=True)


class _Look(_Row):
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
    ppl: list[Annotated[float, Field(ge=1)] | None] | None = None
    reward: Probability | None = Field(None, validation_alias=AliasChoices("reward", "prm_score"))
    text: str | None = None
    probes: list[_Look] | None = None


class _Question(_Row):
    id: Text = Field(validation_alias=AliasChoices("id", "question", "problem"))
    target: Text | None = Field(None, validation_alias=AliasChoices("target", "answer"))
    samples: Annotated[list[_Sample], Field(min_length=1)]
    run: Text = ""
    task: Text = ""
    greedy: _Sample | None = None


class _Chain(_Row):
    id: Text = Field(validation_alias=AliasChoices("id", "question", "problem"))
    target: Text | None = Field(None, validation_alias=AliasChoices("target", "answer"))
    tokens: Tokens = Field(validation_alias=AliasChoices("output_tokens", "tokens", "num_tokens"))
    probes: Annotated[list[_Look], Field(min_length=1)]
    run: Text = Field("", validation_alias=AliasChoices("run", "set"))
    task: Text = ""


class _Turn(_Row):
    draft: str | None = None
    target: str | None = None
    ppl: Annotated[float, Field(ge=1)] | None = None


class _Drafts(_Row):
    id: Text = Field(validation_alias=AliasChoices("question", "id", "problem"))
    target: Text | None = Field(None, validation_alias="answer")
    turns: Annotated[list[_Turn], Field(min_length=1)]


def read_plain(rows: Iterable[Row], name: str) -> list[LoggedQuestion]:
    """The questions of a JSONL file, whose rows are of one kind: they have `samples`, `probes` or `turns`.

    Args:
        rows: The rows.
        name: Of the file, for errors.

    Raises:
        DatasetError: A row is of no known kind, or a field is missing or wrong; it names file, line, what was given and
            what is allowed.
    """
    kinds: Mapping[str, Callable[[Sequence[Row], str], list[LoggedQuestion]]] = {
        "samples": _of_samples,
        "probes": _of_chains,
        "turns": _of_drafts,
    }
    every = list(rows)
    if not every:
        raise DatasetError(f"{name} is empty; give a question a line, each with its `samples`")
    kind = next((key for key in kinds if key in every[0].value), None)
    if kind is None:
        problem = every[0].problem or f"has the fields {', '.join(sorted(every[0].value)) or 'of an empty object'}"
        raise DatasetError(
            f"{name}, line {every[0].number}: {problem}; a row of a recording has `samples` (a question with all its "
            "samples), `probes` (a chain with its looks) or `turns` (a chain of drafts)"
        )
    for row in every:
        if row.problem is not None:
            raise DatasetError(f"{name}, line {row.number}: {row.problem}")
        if kind not in row.value:
            raise DatasetError(
                f"{name}, line {row.number}: has no `{kind}`, and line {every[0].number} has it; a file holds rows of "
                "one kind"
            )
    return kinds[kind](every, name)


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
                    f"{name}, line {row.number}: a sample has the fields {fields}; it needs `answer` (null where it "
                    "gave none), or a `text` from which the answer is read"
                )
        samples = [_sample(each) for each in found.samples]
        greedy = None if found.greedy is None else _sample(found.greedy)
        questions.append(LoggedQuestion(found.id, found.target, samples, found.run, found.task, greedy))
    return questions


def _sample(found: _Sample) -> LoggedSample:
    answer = found.answer
    if answer is None and found.text is not None:
        answer = extract(found.text)
    logprob = found.logprob
    if logprob is None and found.ppl:
        logs = [-math.log(each) for each in found.ppl if each is not None]
        logprob = sum(logs) / len(logs) if logs else None
    tokens, chain = found.tokens, None
    if found.probes:
        tokens = found.probes[-1].tokens if tokens is None else tokens
        chain = _chain(found.probes, tokens)
    return LoggedSample(answer, found.correct, tokens, found.seconds, logprob, found.reward, found.text, chain)


def _of_chains(rows: Sequence[Row], name: str) -> list[LoggedQuestion]:
    """Chains of one run, task and question are its samples; the answer at a chain's last look is the sample's."""
    questions: dict[tuple[str, str, str], LoggedQuestion] = {}
    for row in rows:
        found: _Chain = _parsed(_Chain, row, name)
        question = questions.setdefault(
            (found.run, found.task, found.id), LoggedQuestion(found.id, found.target, [], found.run, found.task)
        )
        chain = _chain(found.probes, found.tokens)
        question.samples.append(LoggedSample(found.probes[-1].answer, None, found.tokens, chain=chain))
    return list(questions.values())


def _chain(probes: Sequence[_Look], length: int) -> LoggedChain:
    looks = []
    for look in probes:
        logprobs = None if look.probability is None else (math.log(max(look.probability, 1e-300)),)
        response = "" if look.answer is None else look.answer
        probe = Probe(
            Prefix(look.tokens, "", None, None), look.answer, -1, look.hedged, response, answer_logprobs=logprobs
        )
        forced = look.answer if look.forced is None else look.forced
        looks.append(LoggedLook(probe, forced, look.answer_tokens, look.answer_tokens))
    return LoggedChain(looks, length)


def _of_drafts(rows: Sequence[Row], name: str) -> list[LoggedQuestion]:
    """Chains of drafts of one question are its samples; every draft and target that is not empty counts 500 tokens."""
    questions: dict[str, LoggedQuestion] = {}
    for row in rows:
        found: _Drafts = _parsed(_Drafts, row, name)
        question = questions.setdefault(found.id, LoggedQuestion(found.id, found.target))
        text = "".join((turn.draft or "") + (turn.target or "") for turn in found.turns)
        chunks = sum(bool(turn.draft) + bool(turn.target) for turn in found.turns)
        logs = [-math.log(turn.ppl) for turn in found.turns if turn.ppl is not None]
        logprob = sum(logs) / len(logs) if logs else None
        question.samples.append(LoggedSample(extract(text), None, CHUNK_TOKENS * chunks, logprob=logprob, text=text))
    return list(questions.values())
