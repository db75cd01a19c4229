"""Nonconformity scores of chunks, and pools of calibration scores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from typing import Literal

import numpy as np
from sortedcontainers import SortedList

from scaffolding_ext.controllers.draft_target.p_values import Ranks, Ties


def mean_nll(logprobs: Sequence[float]) -> float:
    """Mean negative log-likelihood of the tokens, in nats; the log of the perplexity.

    Reference: A1, equation 11.

    Deviation: The released code omits the chunk's first token.
    """
    return -float(np.mean(logprobs))


class ScorePool:
    """A multiset of nonconformity scores with insertion, removal and rank in O(log n).

    Raises:
        ValueError: A score is not finite.
    """

    def __init__(self, scores: Iterable[float] = ()) -> None:
        self._ordered = SortedList(_checked(score) for score in scores)

    def __len__(self) -> int:
        return len(self._ordered)

    def __iter__(self) -> Iterator[float]:
        return iter(self._ordered)

    def add(self, score: float) -> None:
        """Add a score; ValueError if it is not finite."""
        self._ordered.add(_checked(score))

    def remove(self, score: float) -> None:
        """Remove one such score; ValueError if there is none."""
        self._ordered.remove(score)

    def p_value(self, score: float, ties: Ties = "conservative", rng: np.random.Generator | None = None) -> float:
        """P-value of a score among the pool's, as in `p_values`; in an empty pool 1, or uniform with random ties.

        Raises:
            ValueError: The score is not finite, or random ties have no `rng`.
        """
        num_at_most = self._ordered.bisect_right(_checked(score))
        num_equal = num_at_most - self._ordered.bisect_left(score)
        ranks = Ranks(np.array([len(self) - num_at_most]), np.array([num_equal]), len(self))
        return float(ranks.p_values(ties, rng)[0])


Pool = Literal["per_turn", "first_turn"]  # turns that a chunk is ranked among: its turn, or the first


def _checked(score: float) -> float:
    if not isfinite(score):
        raise ValueError(f"score is {score}; scores must be finite: was an empty chunk scored?")
    return float(score)
