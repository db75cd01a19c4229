"""Which blocks of KV memory leave first: those of weak branches, and of deep ones."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable
from typing import Generic, TypeVar

from scaffolding_ext.maths import checks

Key = TypeVar("Key", bound=Hashable)


def block_score(score: float, depth: int) -> float:
    """Omega: how much a block is worth keeping, in [0, 1].

    Args:
        score: Of the branch that it belongs to, in [0, 1]; a prefix that all share has 1.
        depth: Of that branch in the tree; 0 for the prefix.

    Raises:
        ValueError: One is outside its range.

    Reference:
        RKSC, algorithm 4.
    """
    return checks.number("score", score, least=0, most=1) / (checks.whole("depth", depth, least=0) + 1)


class EvictionOrder(Generic[Key]):
    """Keys by their score: the lowest leaves first, of equals the one that was scored first.

    A heap: a score is set, changed or taken back in logarithmic time, with no look at the others. What was replaced
    stays in the heap until it comes to the top or until half of the heap is of that kind.

    Reference:
        RKSC, algorithm 4.

    Deviation:
        The released code sorts all blocks whenever one leaves, scores all of them 1, and frees no memory.
    """

    def __init__(self) -> None:
        self._current: dict[Key, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._current)

    def __contains__(self, key: object) -> bool:
        return key in self._current

    def put(self, key: Key, score: float) -> None:
        """Set the score of a key, new or known."""
        entry = score, next(self._numbers)
        self._current[key] = entry
        heapq.heappush(self._heap, (*entry, key))
        if len(self._heap) > 2 * len(self._current) + 8:
            self._heap = [(*known, each) for each, known in self._current.items()]
            heapq.heapify(self._heap)

    def discard(self, key: Key) -> None:
        """Take a key out, where it is in."""
        self._current.pop(key, None)

    def pop(self) -> Key:
        """The key with the lowest score, which is taken out.

        Raises:
            KeyError: There is none.
        """
        while self._heap:
            score, number, key = heapq.heappop(self._heap)
            if self._current.get(key) == (score, number):
                del self._current[key]
                return key
        raise KeyError("no key is left to evict")
