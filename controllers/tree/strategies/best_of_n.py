"""Best of n as a tree: whole solutions behind the root, and nothing below them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scaffolding_ext import require
from scaffolding_ext.controllers.tree.node import Node
from scaffolding_ext.controllers.tree.strategies.base import LevelStrategy


class BestOfN(LevelStrategy):
    """Whole solutions, side by side: no step is judged. The strategy that every search is held against.

    Args:
        num_samples: How many solutions.
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
