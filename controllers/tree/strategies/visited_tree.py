"""A tree whose nodes count visits and values: a search descends it and backs values up."""

from __future__ import annotations

from scaffolding_ext.controllers.tree.node import Node
from scaffolding_ext.controllers.tree.strategies.base import Strategy


class Visits:
    """Statistics of a node: visits, including those towards open nodes, and values."""

    __slots__ = ("is_exhausted", "num_told", "num_visits", "total")

    def __init__(self) -> None:
        self.num_visits = 0
        self.num_told = 0
        self.total = 0.0
        self.is_exhausted = False

    @property
    def mean(self) -> float:
        return self.total / self.num_told if self.num_told else 0.0


class VisitedTree(Strategy):
    """A strategy that descends from the root to the node it expands, and backs values up to the root."""

    branching: int

    def _start(self) -> None:
        self.known: dict[tuple[int, ...], Visits] = {(): Visits()}

    def is_live(self, node: Node) -> bool:
        return not self.known[node.path].is_exhausted and self._num_steps(node) < self.branching

    def visits(self, node: Node) -> float:
        return float(self.known[node.path].num_visits)

    def _expand(self, node: Node) -> Node:
        child = self._grow(node)
        self.known[child.path] = Visits()
        for each in (child, *child.ancestors()):
            self.known[each.path].num_visits += 1
        return child

    def _back_up(self, node: Node, value: float) -> None:
        for each in (node, *node.ancestors()):
            known = self.known[each.path]
            known.num_told += 1
            known.total += value
        self._exhaust(node)

    def _lose(self, node: Node) -> None:
        self.known[node.path].is_exhausted = True
        for each in (node, *node.ancestors()):
            self.known[each.path].num_visits -= 1
        self._exhaust(node)

    def _exhaust(self, node: Node) -> None:
        """Mark nodes below which nothing can be written, from the node to the root."""
        for each in (node, *node.ancestors()):
            if each.has_ended or (self._num_steps(each) >= self.branching and not self._live(each)):
                self.known[each.path].is_exhausted = True

    def _num_steps(self, node: Node) -> int:
        """Children that are steps, not rollouts."""
        return sum(not child.to_end or child.depth >= self.max_depth for child in node.children)

    def _live(self, node: Node) -> list[Node]:
        """Children that can still be expanded below."""
        return [child for child in node.children if not self.known[child.path].is_exhausted]
