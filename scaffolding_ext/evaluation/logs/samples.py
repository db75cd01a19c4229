"""Data model of samples: what readers find in logs, and the columns of a recording, on which rules are played.

A reader returns `Log`s of questions with their samples; `graded.recording_of` groups equal answers and builds columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.errors import DatasetError
from scaffolding_ext.stack.config import StackConfig

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Measure = Literal["accuracy", "agreement"]
Column = Literal["targets", "tokens", "seconds", "logprobs", "rewards", "probes"]
NO_ANSWER = -1
NO_TARGET = -2  # equals the class of no answer


class ChainProbes(NamedTuple):
    """Probes of one sample's chain of thought, oldest first.

    Attributes:
        probes: Result of each. `answer_class` is a class of the question once it is graded.
        forced: Class of the chain's answer at each probe if its thinking is closed, shape [num_probes].
        num_answer_tokens: Tokens decoded for the answer to each probe, shape [num_probes].
        num_forced_tokens: Tokens decoded for each forced answer, shape [num_probes].
        length: Tokens of the chain's thinking, after which it ended by itself.
        num_prompt_tokens: Tokens of the rendered question; 0 if unknown.
        num_probe_suffix: Tokens that ask for the answer; 0 if unknown.
        num_close_suffix: Tokens that close the thinking; 0 if unknown.
        forced_answers: Forced answers as logged, before they are graded.
    """

    probes: Sequence[Probe]
    forced: Ints
    num_answer_tokens: Ints
    num_forced_tokens: Ints
    length: int
    num_prompt_tokens: int = 0
    num_probe_suffix: int = 0
    num_close_suffix: int = 0
    forced_answers: Sequence[str | None] = ()


@dataclass
class LoggedSample:
    """A sample as logged; None stands for missing data.

    Attributes:
        answer: Its answer; None if it gave none.
        correct: The log's verdict. Without one, an answer equal to the target is right.
        logprob: Mean log-probability of its tokens.
        reward: Its reward, in [0, 1].
        probes: Probes of its chain, not graded.
    """

    answer: str | None
    correct: bool | None = None
    tokens: int | None = None
    seconds: float | None = None
    logprob: float | None = None
    reward: float | None = None
    probes: ChainProbes | None = None


@dataclass
class LoggedQuestion:
    """A question of one run, with its samples in the log's order."""

    id: str
    target: str | None
    samples: list[LoggedSample] = field(default_factory=list)
    run: str = ""
    task: str = ""


def merged(questions: Iterable[LoggedQuestion], source: str) -> list[LoggedQuestion]:
    """Put the samples of equal questions (run, task and id) together, in order.

    Raises:
        DatasetError: A question has two targets.
    """
    found: dict[tuple[str, str, str], LoggedQuestion] = {}
    for each in questions:
        first = found.setdefault((each.run, each.task, each.id), each)
        if first is each:
            continue
        if first.target != each.target:
            raise DatasetError(
                f"{source}: the question {each.id!r} has the targets {first.target!r} and {each.target!r}; give each "
                "question an id of its own, or each run a `run`"
            )
        first.samples += each.samples
    return list(found.values())


@dataclass
class Log:
    """Content of one file or folder; the fields are those of `Recording`."""

    source: str
    fingerprint: str
    questions: list[LoggedQuestion]
    model: str | None = None
    sampling: dict[str, Any] | None = None
    dataset: str | None = None
    stack: StackConfig | None = None
    note: str | None = None


@dataclass(frozen=True, eq=False)
class RecordedQuestion:
    """All samples of one question in one run. A column is None if the log lacks it.

    Attributes:
        run: Its run: a model with its settings. Intervals resample whole runs if there are several.
        task: Name of its benchmark in the log; may be empty.
        classes: Class of equal answers of each sample, shape [num_samples]; `NO_ANSWER` without one.
        correct: Right samples, shape [num_samples]; without a target, those in the class of the full vote's winner.
        target: Class of the right answer; `NO_TARGET` if no sample has it, or it is unknown.
        tokens: Decoded tokens of each sample, shape [num_samples]; 1 each if the log has none, so that a cost in
            tokens counts samples.
        logprobs: Mean log-probability of each sample's tokens.
        rewards: Reward of each sample, in [0, 1].
        missing: Columns that the log lacks for this question.
    """

    id: str
    run: str
    task: str
    classes: Ints
    correct: Bools
    target: int
    tokens: Ints
    seconds: Floats | None = None
    logprobs: Floats | None = None
    rewards: Floats | None = None
    probes: Sequence[ChainProbes] | None = None
    missing: frozenset[Column] = frozenset()

    @property
    def num_samples(self) -> int:
        return len(self.classes)


@dataclass(frozen=True)
class Recording:
    """Questions with the same number of samples each, from one or more logs.

    Attributes:
        sources: Their files, or the stack that drew them.
        fingerprint: SHA-256 of the input, as `sha256:` and 64 hexadecimal digits.
        model: Name of the model, if the log names exactly one.
        sampling: Sampling fields, if logged.
        dataset: The dataset of the questions, as named in a stack file, if a stack drew the samples.
        left_out: Descriptions of skipped data, such as "300 questions with 16 samples".
        notes: Sentences on how the logs were read, such as how tokens were counted.
        stack: The stack that drew the samples, if all logs are folders of `eval` with the same one.
        doubt: Sign that the log was misread, and what to check.
    """

    questions: Sequence[RecordedQuestion]
    sources: Sequence[str]
    fingerprint: str
    model: str | None = None
    sampling: Mapping[str, Any] | None = None
    dataset: str | None = None
    left_out: Sequence[str] = ()
    notes: Sequence[str] = ()
    stack: StackConfig | None = None
    doubt: str | None = None

    @property
    def num_samples(self) -> int:
        return self.questions[0].num_samples

    @property
    def missing(self) -> frozenset[Column]:
        """Columns that at least one question lacks; axes that need them cannot be tried."""
        return frozenset().union(*(question.missing for question in self.questions))

    @property
    def measure(self) -> Measure:
        """Meaning of `correct`: `"accuracy"` if all have targets, else `"agreement"` with the full vote."""
        return "agreement" if "targets" in self.missing else "accuracy"

    @property
    def runs(self) -> list[str]:
        return [question.run for question in self.questions]
