"""Questions as a log has them, before equal answers are grouped: readers give these, and `recording_of` grades them."""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np

from scaffolding_ext.answers import group
from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.controllers.vote.voting import vote
from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.logs.recording import (
    NO_TARGET,
    Column,
    Floats,
    GreedySample,
    Ints,
    Looks,
    RecordedQuestion,
    Recording,
)
from scaffolding_ext.evaluation.run.scoring import answer_of_target
from scaffolding_ext.stack.config import StackConfig

T = TypeVar("T")
_CHOICE = re.compile(r"[\s(\[*]*([A-Ja-j])[\s)\].:*]*")  # "(b)", "B.", "**B**"


class LoggedLook(NamedTuple):
    """One look at a chain.

    Attributes:
        probe: What it saw; the answer's class is not known yet.
        forced: The answer that the chain gives there when its thinking is closed, or None.
        num_answer_tokens: Tokens decoded for the probe's answer.
        num_forced_tokens: Tokens decoded for the forced answer.
    """

    probe: Probe
    forced: str | None
    num_answer_tokens: int = 0
    num_forced_tokens: int = 0


class LoggedChain(NamedTuple):
    """The looks at a sample's chain, and the numbers of tokens that `recording.Looks` has beside them."""

    looks: Sequence[LoggedLook]
    length: int
    num_prompt_tokens: int = 0
    num_probe_suffix: int = 0
    num_close_suffix: int = 0


@dataclass
class LoggedSample:
    """One sample; None stands for what the log does not say.

    Attributes:
        answer: Its answer; None where it gave none.
        correct: What the log says of it. Where it says nothing, an answer equal to the target is right.
        tokens: Tokens that it decoded.
        seconds: Wall-clock seconds that it took.
        logprob: Mean log-probability of its tokens.
        reward: Its reward, in [0, 1].
        text: Its text.
        chain: The looks at its chain.
    """

    answer: str | None
    correct: bool | None = None
    tokens: int | None = None
    seconds: float | None = None
    logprob: float | None = None
    reward: float | None = None
    text: str | None = None
    chain: LoggedChain | None = None


@dataclass
class LoggedQuestion:
    """One question of one run, with its samples in the log's order.

    Attributes:
        rounds: As `RecordedQuestion` has them.
    """

    id: str
    target: str | None
    samples: list[LoggedSample] = field(default_factory=list)
    run: str = ""
    task: str = ""
    greedy: LoggedSample | None = None
    rounds: list[int] | None = None


@dataclass
class Log:
    """What a reader found in one file or folder."""

    source: str
    fingerprint: str
    questions: list[LoggedQuestion]
    model: str | None = None
    sampling: dict[str, Any] | None = None
    dataset: str | None = None
    stack: StackConfig | None = None


def recording_of(
    questions: Sequence[LoggedQuestion],
    sources: Sequence[str],
    fingerprint: str,
    *,
    num_samples: int | None = None,
    model: str | None = None,
    sampling: dict[str, Any] | None = None,
    dataset: str | None = None,
    stack: StackConfig | None = None,
    units_implied: bool = False,
    num_joined: int = 0,
) -> Recording:
    """Grade the questions that can be tried side by side: equally many samples each, with tokens where one has them.

    Args:
        questions: The questions.
        sources: As `Recording` has them.
        fingerprint: As `Recording` has it.
        num_samples: Samples of each question; questions with fewer are left out, and of those with more the first
            samples are taken. None takes the number that most questions have.
        model: As `Recording` has it.
        sampling: As `Recording` has it.
        dataset: As `Recording` has it.
        stack: As `Recording` has it.
        units_implied: Whether the questions imply units (see `answers.equal`).
        num_joined: As `Recording` has it.

    Raises:
        DatasetError: No question has as many samples.
    """
    left_out: list[str] = []
    kept = [each for each in questions if each.samples]
    _fill_up([each for each in kept if each.rounds is not None])
    if num_samples is None:
        counts = collections.Counter(len(each.samples) for each in kept)
        num_samples = max(counts, key=lambda number: (counts[number], number), default=1)
    most = max((len(each.samples) for each in kept), default=0)
    kept = _kept(
        kept, lambda each: len(each.samples) >= num_samples, f"have fewer than {num_samples} samples", left_out
    )
    if not kept:
        raise DatasetError(
            f"{', '.join(sources)}: no question has {num_samples} samples; the most that a question has is {most}: "
            f"take {most} or fewer"
        )
    for each in kept:
        del each.samples[num_samples:]
    if any(map(_has_tokens, kept)):
        kept = _kept(kept, _has_tokens, "have no tokens", left_out)
    by_agreement = any(each.target is None and not _has_labels(each) for each in kept)
    graded = [_graded(each, by_agreement, units_implied) for each in kept]
    return Recording(graded, sources, fingerprint, model, sampling, dataset, left_out, num_joined, stack)


def _kept(
    questions: list[LoggedQuestion], is_kept: Callable[[LoggedQuestion], bool], why: str, left_out: list[str]
) -> list[LoggedQuestion]:
    kept = [each for each in questions if is_kept(each)]
    if len(kept) < len(questions):
        left_out.append(f"{len(questions) - len(kept)} questions {why}")
    return kept


def _fill_up(searches: Sequence[LoggedQuestion]) -> None:
    """Let all searches have as many solutions as the longest: further ones have no answer, and cost nothing."""
    most = max((len(each.samples) for each in searches), default=0)
    for each in searches:
        assert each.rounds is not None
        each.rounds[-1] = most
        each.samples += [LoggedSample(None, False, 0) for _ in range(most - len(each.samples))]


def _has_tokens(question: LoggedQuestion) -> bool:
    return all(sample.tokens is not None for sample in question.samples)


def _has_labels(question: LoggedQuestion) -> bool:
    return all(sample.correct is not None for sample in question.samples)


def _graded(question: LoggedQuestion, by_agreement: bool, units_implied: bool) -> RecordedQuestion:
    samples, greedy = question.samples, question.greedy
    chains = [sample.chain for sample in samples if sample.chain is not None]
    if len(chains) < len(samples):
        chains = []  # rules on chains are played on whole questions
    looks = [look for chain in chains for look in chain.looks]
    target = None if question.target is None else answer_of_target(question.target)
    said = [
        *(sample.answer for sample in samples),
        None if greedy is None else greedy.answer,
        *(look.probe.answer for look in looks),
        *(look.forced for look in looks),
        target,
    ]
    if target is not None and (letter := _letter(target)) is not None:
        said = [None if each is None else _letter(each) or each for each in said]
        target = letter
    numbers = group(said, units_implied=units_implied)
    heads: dict[int, str] = {}
    for number, text in zip(numbers, said, strict=True):
        if text is not None:
            heads.setdefault(number, text)
    own, of_greedy, right = numbers[: len(samples)], numbers[len(samples)], numbers[-1]
    of_looks = numbers[len(samples) + 1 : len(samples) + 1 + len(looks)]
    of_forced = numbers[len(samples) + 1 + len(looks) : -1]
    if by_agreement:
        right = vote(own)
    elif target is None:  # the labels tell it
        right = next((own[index] for index, sample in enumerate(samples) if sample.correct), NO_TARGET)
    is_right = [
        number == right if by_agreement or sample.correct is None else sample.correct
        for number, sample in zip(own, samples, strict=True)
    ]
    tokens = _ints([sample.tokens for sample in samples])
    seconds = _floats([sample.seconds for sample in samples])
    logprobs = _floats([sample.logprob for sample in samples])
    rewards = _floats([sample.reward for sample in samples])
    texts = _whole([sample.text for sample in samples])
    has: dict[Column, bool] = {
        "targets": not by_agreement,
        "tokens": tokens is not None,
        "seconds": seconds is not None,
        "logprobs": logprobs is not None,
        "rewards": rewards is not None,
        "looks": bool(chains),
        "texts": texts is not None,
    }
    return RecordedQuestion(
        id=question.id,
        run=question.run,
        task=question.task,
        classes=np.array(own, dtype=np.int64),
        correct=np.array(is_right, dtype=np.bool_),
        target=right,
        answers=[heads[number] for number in sorted(heads)],
        tokens=np.ones(len(samples), dtype=np.int64) if tokens is None else tokens,
        seconds=seconds,
        logprobs=logprobs,
        rewards=rewards,
        looks=_looks(chains, of_looks, of_forced) if chains else None,
        texts=texts,
        greedy=None if greedy is None else _greedy(greedy, of_greedy, right),
        rounds=question.rounds,
        missing=frozenset(name for name, is_there in has.items() if not is_there),
    )


def _letter(text: str) -> str | None:
    """The choice that an answer names, or None where it is no single letter."""
    found = _CHOICE.fullmatch(text)
    return None if found is None else found[1].upper()


def _whole(values: Sequence[T | None]) -> list[T] | None:
    """The values, or None where one is missing."""
    present = [value for value in values if value is not None]
    return present if len(present) == len(values) else None


def _ints(values: Sequence[int | None]) -> Ints | None:
    whole = _whole(values)
    return None if whole is None else np.array(whole, dtype=np.int64)


def _floats(values: Sequence[float | None]) -> Floats | None:
    whole = _whole(values)
    return None if whole is None else np.array(whole, dtype=np.float64)


def _greedy(sample: LoggedSample, number: int, right: int) -> GreedySample:
    is_right = number == right if sample.correct is None else sample.correct
    return GreedySample(number, is_right, 1 if sample.tokens is None else sample.tokens)


def _looks(chains: Sequence[LoggedChain], of_probes: Sequence[int], of_forced: Sequence[int]) -> list[Looks]:
    found, begin = [], 0
    for chain in chains:
        end = begin + len(chain.looks)
        classes = of_probes[begin:end]
        found.append(
            Looks(
                [look.probe._replace(answer_class=number) for look, number in zip(chain.looks, classes, strict=True)],
                np.array(of_forced[begin:end], dtype=np.int64),
                np.array([look.num_answer_tokens for look in chain.looks], dtype=np.int64),
                np.array([look.num_forced_tokens for look in chain.looks], dtype=np.int64),
                chain.length,
                chain.num_prompt_tokens,
                chain.num_probe_suffix,
                chain.num_close_suffix,
            )
        )
        begin = end
    return found
