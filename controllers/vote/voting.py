"""Votes, plain and weighted. Ties go to the class that appeared first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from scaffolding_ext import require


def vote(classes: Sequence[int], weights: Sequence[float] | None = None) -> int:
    """The class with most votes, or with the largest sum of weights; of equals the one that appeared first.

    Args:
        classes: Class of each sample's answer in order, shape [num_samples]; -1 (no answer) does not vote.
    """
    if weights is not None and len(weights) != len(classes):
        raise ValueError(f"{len(weights)} weights for {len(classes)} samples: give one for each sample")
    totals: dict[int, float] = {}
    for index, number in enumerate(classes):
        weight = 1.0 if weights is None else weights[index]
        if type(weight) is not float or not 0.0 <= weight < math.inf:  # a sound weight costs no call
            weight = require.number(f"weight {index}", weight, least=0)
        if number != -1:
            totals[number] = totals.get(number, 0.0) + weight
    return max(totals, key=totals.__getitem__, default=-1)  # of equals, the first inserted


class Election(NamedTuple):
    """How a vote ended.

    Attributes:
        first: Index of the first sample of that class, which is the vote's output; 0 where no sample has an answer.
    """

    winner: int
    first: int


def elect(classes: Sequence[int], weights: Sequence[float] | None = None) -> Election:
    """The winner, as `vote` finds it, and the sample that stands for it."""
    winner = vote(classes, weights)
    return Election(winner, list(classes).index(winner) if winner != -1 else 0)
