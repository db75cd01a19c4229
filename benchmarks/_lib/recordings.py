"""Parts of recordings, on which studies choose and judge."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from scaffolding_ext.evaluation.logs.samples import Ints, RecordedQuestion, Recording


def of_questions(recording: Recording, questions: Sequence[int] | Ints) -> Recording:
    """Return the recording with only these questions, by index."""
    index = np.asarray(questions).tolist()
    return dataclasses.replace(recording, questions=[recording.questions[each] for each in index])


def of_samples(recording: Recording, samples: Sequence[int] | Ints) -> Recording:
    """Return the recording with only these samples of each question, in the order of the indices."""
    return dataclasses.replace(recording, questions=[_of_question(each, samples) for each in recording.questions])


def _of_question(question: RecordedQuestion, samples: Sequence[int] | Ints) -> RecordedQuestion:
    index = np.asarray(samples, dtype=np.int64)

    def part(column: Any) -> Any:
        if column is None or isinstance(column, np.ndarray):
            return None if column is None else column[index]
        return [column[number] for number in index.tolist()]

    names = ("classes", "correct", "tokens", "seconds", "logprobs", "rewards", "probes")
    return dataclasses.replace(question, **{name: part(getattr(question, name)) for name in names})
