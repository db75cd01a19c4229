"""mean@n, maj@k and pass@k of a run: each question is answered in several epochs, and questions are resampled."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from scaffolding_ext.answers import group
from scaffolding_ext.documents import plain
from scaffolding_ext.stats.intervals import Estimate
from scaffolding_ext.stats.repeats import majority_at_k, mean_of_questions, pass_at_k

_SEED = 0  # of subsets and resamples: a run has one summary


class Attempt(NamedTuple):
    """One epoch of a question: its answer, or None, and whether that is right."""

    epoch: int
    answer: str | None
    correct: bool


class Repeats(NamedTuple):
    """Figures of a run's questions.

    Attributes:
        n: Epochs of a question; where a run was interrupted, the most.
        mean: mean@n, the share of right attempts, a question counted once.
        majority: maj@k by `k`: the vote of `k` attempts is right.
        passed: pass@k by `k`: at least one of `k` attempts is right.
    """

    n: int
    mean: Estimate
    majority: dict[int, Estimate]
    passed: dict[int, Estimate]

    def to_json(self) -> dict[str, Any]:
        """A dict that JSON can hold; bounds that nothing is known of are null."""
        return {
            "mean_at_n": {"n": self.n, **plain(self.mean)},
            "maj_at_k": plain(self.majority),
            "pass_at_k": plain(self.passed),
        }


def figures_of(questions: Iterable[Sequence[Attempt]], ks: Collection[int] | None = None) -> Repeats:
    """The figures of questions, each with its attempts in any order.

    Args:
        questions: At least one, each with at least one attempt.
        ks: The `k` of maj@k and pass@k; None takes the powers of two up to the epochs, and the epochs. A question with
            fewer than `k` attempts, which only a run has that was interrupted, is left out of that figure.

    Raises:
        ValueError: A `k` is below 1, or above the attempts of every question.
    """
    tables: dict[int, list[Sequence[Attempt]]] = {}  # by their number of attempts
    for attempts in questions:
        tables.setdefault(len(attempts), []).append(sorted(attempts, key=lambda attempt: attempt.epoch))
    n = max(tables)
    wanted = sorted({2**i for i in range(n.bit_length())} | {n}) if ks is None else sorted(set(ks))
    if wanted[0] < 1 or wanted[-1] > n:
        raise ValueError(f"k is {wanted}; with {n} epochs it may be 1 to {n}")
    parts = [_Table(tables[size]) for size in sorted(tables)]
    means = np.concatenate([part.correct.mean(axis=1) for part in parts])
    majority, passed = {}, {}
    for k in wanted:
        enough = [part for part in parts if part.correct.shape[1] >= k]
        rng = np.random.default_rng(_SEED)
        votes = [majority_at_k(part.classes, part.correct, k, rng=rng) for part in enough]
        majority[k] = mean_of_questions(np.concatenate(votes), rng=np.random.default_rng(_SEED))
        shares = [pass_at_k(part.correct, k) for part in enough]
        passed[k] = mean_of_questions(np.concatenate(shares), rng=np.random.default_rng(_SEED))
    return Repeats(n, mean_of_questions(means, rng=np.random.default_rng(_SEED)), majority, passed)


class _Table:
    """Questions with equally many attempts: which are right, and which answers are equal."""

    def __init__(self, questions: Sequence[Sequence[Attempt]]) -> None:
        self.correct = np.array([[attempt.correct for attempt in attempts] for attempts in questions])
        self.classes = np.array([_classes(attempts) for attempts in questions])


def _classes(attempts: Sequence[Attempt]) -> list[int]:
    """Class of each answer, -1 without one. Right answers are one class: all equal the target."""
    if len(attempts) == 1:
        return [-1 if attempts[0].answer is None else 0]
    wrong = group([None if attempt.correct else attempt.answer for attempt in attempts])
    return [0 if attempt.correct else number + (number >= 0) for attempt, number in zip(attempts, wrong, strict=True)]
