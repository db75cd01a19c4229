"""Grade logged questions: group equal answers into classes, and build the columns of a recording."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from scaffolding_ext.answers import group
from scaffolding_ext.controllers.vote.voting import vote
from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.logs.doubts import doubt_of
from scaffolding_ext.evaluation.logs.samples import NO_TARGET, ChainProbes, LoggedQuestion, RecordedQuestion, Recording
from scaffolding_ext.evaluation.logs.stated import letter_in
from scaffolding_ext.evaluation.run.scoring import answer_of_target

T = TypeVar("T")


def recording_of(
    questions: Sequence[LoggedQuestion],
    sources: Sequence[str],
    fingerprint: str,
    *,
    num_samples: int | None = None,
    **known: Any,
) -> Recording:
    """Grade the questions that can be compared, with the same number of samples each.

    If any question has its samples' tokens, those without are left out. If a question has neither a target nor grades,
    all are graded by agreement with their own majority. The given questions are changed: further samples are dropped.

    Args:
        questions: The questions as a log has them.
        sources: Names of the logs, for errors and reports.
        fingerprint: Hash of what was read.
        num_samples: Samples per question; questions with fewer are left out, and of those with more the first samples
            are taken. None takes the most common number.
        known: Other fields of `Recording`.

    Raises:
        DatasetError: No question has that many samples.
    """
    left_out: list[str] = []
    kept = [each for each in questions if each.samples]
    if num_samples is None:
        counts = collections.Counter(len(each.samples) for each in kept)
        num_samples = max(counts, key=lambda number: (counts[number], number), default=1)
        if num_longer := sum(count for number, count in counts.items() if number > num_samples):
            left_out.append(
                f"samples after the first {num_samples} of {num_longer} questions, which have up to {max(counts)}"
            )
    most = max((len(each.samples) for each in kept), default=0)
    few = f"have fewer than {num_samples} samples"
    kept = _kept(kept, lambda each: len(each.samples) >= num_samples, few, left_out)
    if not kept:
        raise DatasetError(
            f"{', '.join(sources)}: no question has {num_samples} samples; the maximum is {most}: use {most} or fewer"
        )
    for each in kept:
        del each.samples[num_samples:]
    if any(map(_has_tokens, kept)):
        kept = _kept(kept, _has_tokens, "have no tokens", left_out)
    by_agreement = any(each.target is None and any(one.correct is None for one in each.samples) for each in kept)
    graded = [_graded(each, by_agreement) for each in kept]
    return Recording(graded, sources, fingerprint, left_out=left_out, doubt=doubt_of(kept, graded), **known)


def _kept(
    questions: list[LoggedQuestion], is_kept: Callable[[LoggedQuestion], bool], why: str, left_out: list[str]
) -> list[LoggedQuestion]:
    kept = [each for each in questions if is_kept(each)]
    if len(kept) < len(questions):
        left_out.append(f"{len(questions) - len(kept)} questions {why}")
    return kept


def _has_tokens(question: LoggedQuestion) -> bool:
    return all(sample.tokens is not None for sample in question.samples)


def _graded(question: LoggedQuestion, by_agreement: bool) -> RecordedQuestion:
    samples = question.samples
    chains = _whole([sample.probes for sample in samples]) or []  # none, if a sample has none
    target = None if question.target is None else answer_of_target(question.target)
    said = [
        *(sample.answer for sample in samples),
        *(probe.answer for each in chains for probe in each.probes),
        *(answer for each in chains for answer in each.forced_answers),
        target,
    ]
    if target is not None and (letter := letter_in(target)) is not None:
        said = [None if each is None else letter_in(each) or each for each in said]
        target = letter
    numbers = group(said)
    own, of_probes, right = numbers[: len(samples)], numbers[len(samples) : -1], numbers[-1]
    if by_agreement:
        right = vote(own)
    elif target is None:  # take it from the labels
        right = next((own[index] for index, sample in enumerate(samples) if sample.correct), NO_TARGET)
    is_right = [
        number == right if by_agreement or sample.correct is None else sample.correct
        for number, sample in zip(own, samples, strict=True)
    ]
    columns: dict[str, Any] = {
        "tokens": _column([sample.tokens for sample in samples], np.int64),
        "seconds": _column([sample.seconds for sample in samples], np.float64),
        "logprobs": _column([sample.logprob for sample in samples], np.float64),
        "rewards": _column([sample.reward for sample in samples], np.float64),
        "probes": _classed(chains, of_probes) if chains else None,
    }
    missing: set[Any] = {name for name, column in columns.items() if column is None}
    if columns["tokens"] is None:
        columns["tokens"] = np.ones(len(samples), dtype=np.int64)
    return RecordedQuestion(
        id=question.id,
        run=question.run,
        task=question.task,
        classes=np.array(own, dtype=np.int64),
        correct=np.array(is_right, dtype=np.bool_),
        target=right,
        **columns,
        missing=frozenset(missing | ({"targets"} if by_agreement else set())),
    )


def _whole(values: Sequence[T | None]) -> list[T] | None:
    present = [value for value in values if value is not None]
    return present if len(present) == len(values) else None


def _column(values: Sequence[Any], kind: Any) -> Any:
    whole = _whole(values)
    return None if whole is None else np.array(whole, dtype=kind)


def _classed(chains: Sequence[ChainProbes], classes: Sequence[int]) -> list[ChainProbes]:
    """Return the chains with the classes of their answers: those of all probes first, then of all forced answers."""
    of_probes, of_forced = iter(classes), iter(classes[len(classes) // 2 :])
    return [
        each._replace(
            probes=[probe._replace(answer_class=next(of_probes)) for probe in each.probes],
            forced=np.array([next(of_forced) for _ in each.probes], dtype=np.int64),
        )
        for each in chains
    ]
