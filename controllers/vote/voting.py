"""Plain and weighted votes. Ties go to the class that appeared first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from scaffolding_ext import require


def vote(classes: Sequence[int], weights: Sequence[float] | None = None) -> int:
    """Return the class with the most votes or the largest sum of weights; on a tie, the one that appeared first.

    Args:
        classes: Class of each sample's answer in order, shape [num_samples]; -1 (no answer) does not vote.
    """
    if weights is not None and len(weights) != len(classes):
        raise ValueError(f"{len(weights)} weights for {len(classes)} samples: give one for each sample")
    totals: dict[int, float] = {}
    for index, number in enumerate(classes):
        weight = 1.0 if weights is None else weights[index]
        if type(weight) is not float or not 0.0 <= weight < math.inf:  # skips the call for a valid weight
            weight = require.number(f"weight {index}", weight, least=0)
        if number != -1:
            totals[number] = totals.get(number, 0.0) + weight
    return max(totals, key=totals.__getitem__, default=-1)  # on a tie, the first inserted


class Election(NamedTuple):
    """Result of a vote.

    Attributes:
        winner: The winning class; -1 if no sample has an answer.
        first: Index of the winning class's first sample, which is the vote's output; 0 if no sample has an answer.
    """

    winner: int
    first: int


def elect(classes: Sequence[int], weights: Sequence[float] | None = None) -> Election:
    winner = vote(classes, weights)
    return Election(winner, list(classes).index(winner) if winner != -1 else 0)


def end_reason(elected: Election, reason: str, returned: str | None) -> str:
    """Return the exit reason of a vote.

    Args:
        reason: That of a vote with a winner. Without one it is `"length"` if the budget cut the returned sample, else
            `"no_answer"`.
        returned: Exit reason of the sample whose text is returned.
    """
    return reason if elected.winner >= 0 else "length" if returned == "length" else "no_answer"


class DrawnSamples(NamedTuple):
    """Samples that a vote drew of those that it could draw."""

    num: int
    most: int

    def tokens_of_all(self, num_tokens: float) -> float:
        """Estimate the tokens of a vote of all samples from those of the drawn ones."""
        return num_tokens / self.num * self.most


def drawn_by(trace: Iterable[Mapping[str, Any]]) -> DrawnSamples | None:
    """Return what a request's outermost vote drew; None if the request is no vote, or has not elected."""
    votes = [each for each in trace if each["event"] == "vote" and "max_samples" in each and not each["branch"]]
    return DrawnSamples(votes[-1]["num_samples"], votes[-1]["max_samples"]) if votes else None
