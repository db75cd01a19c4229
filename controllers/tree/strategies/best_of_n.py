"""Best of n as a tree: whole solutions below the root."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scaffolding_ext import require
from scaffolding_ext.controllers.tree.node import Node
from scaffolding_ext.controllers.tree.strategies.base import LevelStrategy


class BestOfN(LevelStrategy):
    """Whole solutions in parallel, without judging steps; the baseline of every search.

    Args:
        num_samples: Number of solutions.
    """

    max_depth = 1

    def __init__(self, num_samples: int = 8) -> None:
        self.num_samples = require.whole("num_samples", num_samples)

    @property
    def most_leaves(self) -> int | None:
        return self.num_samples

    def of_width(self, width: int) -> BestOfN:
        return BestOfN(width)

    def _first(self) -> Iterable[Node]:
        return [self.root] * self.num_samples

    def _next(self, level: Sequence[Node]) -> Iterable[Node]:
        return []
