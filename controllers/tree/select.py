"""Selectors of a tree's answer among its leaves."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from scaffolding_ext import require
from scaffolding_ext.controllers.vote.voting import vote

Weight = Literal["uniform", "score", "visits"]


class Leaf(NamedTuple):
    """A solution that has ended, as selectors and stops see it.

    Attributes:
        answer_class: Class of its answer, in order of first appearance; -1 without an answer.
        value: Its score times its weight; 0 if not judged.
        visits: Number of the strategy's visits.
        num_tokens: Tokens from the root to its end.
    """

    answer_class: int
    value: float
    visits: float = 1.0
    num_tokens: int = 0


class Selector(ABC):
    """Chooses the answer among leaves."""

    reads_all = False
    """Needs the answers of all leaves, so that missing ones are forced."""

    @abstractmethod
    def choose(self, leaves: Sequence[Leaf]) -> int:
        """Return the index of the answer among the leaves, of which there is at least one, in order of their ends."""


class Best(Selector):
    """The leaf with the highest value, preferring leaves with an answer, then earlier ones."""

    def choose(self, leaves: Sequence[Leaf]) -> int:
        return max(
            range(len(leaves)), key=lambda number: (leaves[number].answer_class >= 0, leaves[number].value, -number)
        )


class Vote(Selector):
    """The answer with the largest sum of weights, from its leaf with the highest value.

    Args:
        weight: Weight of a leaf's vote: `"uniform"`, its `"score"`, or its `"visits"`. If a score is negative, all
            count as logits, exp(score).
    """

    reads_all = True

    def __init__(self, weight: Weight = "score") -> None:
        self.weight: Weight = require.one_of("weight", weight, get_args(Weight))

    def choose(self, leaves: Sequence[Leaf]) -> int:
        winner = vote([leaf.answer_class for leaf in leaves], self._weights(leaves))
        of_winner = [number for number, leaf in enumerate(leaves) if leaf.answer_class == winner]
        return max(of_winner, key=lambda number: (leaves[number].value, -number))

    def _weights(self, leaves: Sequence[Leaf]) -> Sequence[float] | None:
        if self.weight == "uniform":
            return None
        weights = [leaf.visits if self.weight == "visits" else leaf.value for leaf in leaves]
        highest = max(weights)
        if min(weights) < 0:
            return [math.exp(weight - highest) for weight in weights]
        return weights if highest > 0 else None
