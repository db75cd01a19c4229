"""Best-first search: the best open node of the whole tree is expanded."""

from __future__ import annotations

import heapq

from scaffolding_ext import require
from scaffolding_ext.controllers.tree.node import Node
from scaffolding_ext.controllers.tree.strategies.base import Strategy


class BestFirst(Strategy):
    """Best-first search: the best open leaf of the tree gets `branching` children; it ends with the budget.

    Args:
        branching: Children per node.
        at_once: Nodes written concurrently; above `branching` several leaves are expanded together.
        first_ended: If True, the search ends once the best leaf is an ended solution.

    Reference:
        Yao et al., "Tree of Thoughts", arXiv 2305.10601; TreeQuest's best-first search (2 children).
    """

    def __init__(self, branching: int = 2, at_once: int = 4, max_depth: int = 40, first_ended: bool = False) -> None:
        self.branching = require.whole("branching", branching)
        self.at_once = require.whole("at_once", at_once)
        self.max_depth = require.whole("max_depth", max_depth)
        self.first_ended = first_ended

    def is_live(self, node: Node) -> bool:
        return not node.has_ended and len(node.children) < self.branching

    def _start(self) -> None:
        self._leaves: list[tuple[float, tuple[int, ...], Node]] = []
        self._queue = [self.root] * self.branching
        self._is_over = False

    def _learn(self, node: Node, score: float) -> None:
        if not node.has_ended or self.first_ended:
            heapq.heappush(self._leaves, (-score, node.path, node))

    def _choose(self, most: int | None) -> list[Node]:
        wanted = self._wanted(most)
        while len(self._queue) < wanted and self._leaves and not self._is_over:
            node = heapq.heappop(self._leaves)[2]
            self._is_over = node.has_ended
            self._queue += [] if self._is_over else [node] * self.branching
        if self._is_over:
            return []
        chosen, self._queue = self._queue[:wanted], self._queue[wanted:]
        return [self._grow(parent) for parent in chosen]
