"""What no rule can beat: the oracle, and the best policy on counts alone."""

from __future__ import annotations

import numpy as np

from scaffolding_ext.evaluation.tune.costs import Floats, Ints
from scaffolding_ext.evaluation.tune.orders import OrderedVotes

_MOST_COUNTED = 3  # leading answers that the policy looks at


def samples_until_settled(votes: OrderedVotes) -> Ints:
    """The fewest samples of each row from which on the vote stands: its winner is that of all samples."""
    leaders = votes.leaders[:, 1:]
    differs = leaders != leaders[:, -1:]
    last = np.where(differs.any(axis=1), votes.num_samples - np.argmax(differs[:, ::-1], axis=1), 0)
    return last + 1


class CountPolicy:
    """The best policy on the number of samples and the counts of the three leading answers, by dynamic programming.

    It is fitted to some questions and stops where a further sample costs more than it is expected to gain. Nobody can
    serve it, since it needs labelled votes of the same kind; it is the limit of all rules that look at counts alone.

    Args:
        votes: The samples.
        full_right: Whether the full vote of each row is right.
    """

    def __init__(self, votes: OrderedVotes, full_right: Floats) -> None:
        self._votes = votes
        self._states, self._num_states = _leading_counts(votes)
        self._loss = full_right[:, None] - votes.right
        tokens = votes.ordered(votes.samples.costs["decoded"])
        self._cost = tokens / tokens.sum(axis=1).mean()

    def drawn(self, fitted_to: Ints, price: float) -> Ints:
        """Samples of each row under the policy that loses least where all samples cost `price` right answers.

        Args:
            fitted_to: Indices of the questions that it is fitted to.
            price: What the decoded tokens of a full vote are worth, in right answers.
        """
        num_samples = self._votes.num_samples
        is_fitted = np.tile(np.isin(np.arange(self._votes.num_questions), fitted_to), len(self._votes.orders))
        rows = np.flatnonzero(is_fitted)
        value = np.zeros(self._num_states)
        stops = np.zeros(self._num_states, dtype=bool)
        for size in range(num_samples, 0, -1):
            states = self._states[rows, size]
            seen, place = np.unique(states, return_inverse=True)
            number = np.bincount(place)
            stop = np.bincount(place, weights=self._loss[rows, size]) / number
            if size == num_samples:
                value[seen], stops[seen] = stop, True
                continue
            further = price * self._cost[rows, size] + value[self._states[rows, size + 1]]
            go_on = np.bincount(place, weights=further) / number
            value[seen], stops[seen] = np.minimum(stop, go_on), stop <= go_on
        ends = stops[self._states[:, 1:]]
        ends[:, -1] = True
        sizes: Ints = np.argmax(ends, axis=1) + 1
        return sizes


def _leading_counts(votes: OrderedVotes) -> tuple[Ints, int]:
    """A number for each vote so far, by its size and the counts of its leading answers; and how many numbers."""
    by_counts = votes.by_counts
    known: dict[tuple[int, ...], int] = {}
    numbers = np.empty(len(by_counts.rows), dtype=np.int64)
    for state, (row, size) in enumerate(zip(by_counts.rows.tolist(), by_counts.sizes.tolist(), strict=True)):
        classes = votes.classes[row, :size]
        counts = np.sort(np.bincount(classes[classes >= 0]))[::-1][:_MOST_COUNTED].tolist()
        numbers[state] = known.setdefault((size, *counts), len(known))
    return numbers[by_counts.numbers], len(known)
