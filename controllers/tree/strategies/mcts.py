"""Monte Carlo tree search with upper confidence bounds (UCT)."""

from __future__ import annotations

import math

from scaffolding_ext import require
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


class MCTS(Strategy):
    """UCT: descend by Q + c sqrt(ln N_parent / N) to a node with room for a child, write it, back up its value.

    A node being written counts as a visit without a value. Ended nodes are left out of the descent.

    Args:
        branching: Maximum children of a node.
        exploration: Weight c of the bound of rarely visited nodes.
        rollouts: If True, a child's value is the score of one solution that continues it, instead of its own score: an
            iteration goes to the end of a solution.

    Reference:
        Kocsis and Szepesvari, "Bandit based Monte-Carlo Planning", 2006; Liu et al., "Watch the Unobserved", arXiv
        1810.11755 (unobserved visits).
    """

    def __init__(
        self,
        branching: int = 4,
        exploration: float = math.sqrt(2),
        rollouts: bool = False,
        at_once: int = 4,
        max_depth: int = 40,
    ) -> None:
        self.branching = require.whole("branching", branching)
        self.exploration = require.number("exploration", exploration, least=0)
        self.rollouts = self.goes_to_ends = rollouts
        self.at_once = require.whole("at_once", at_once)
        self.max_depth = require.whole("max_depth", max_depth)

    def _start(self) -> None:
        self.known: dict[tuple[int, ...], Visits] = {(): Visits()}
        self._to_roll_out: list[Node] = []

    def _learn(self, node: Node, score: float) -> None:
        if self.rollouts and not node.to_end and not node.has_ended:
            self._to_roll_out.append(node)
            return
        is_rollout = self.rollouts and node.to_end and node.depth < self.max_depth
        if is_rollout and node.parent is not None:
            self.known[node.path].is_exhausted = True
            self._back_up(node.parent, score)
        else:
            self._back_up(node, score)

    def _lose(self, node: Node) -> None:
        self.known[node.path].is_exhausted = True
        if node.to_end and node.depth < self.max_depth and node.parent is not None:  # a rollout is not a visit
            self._back_up(node.parent, self.score[node.parent.path])
            return
        for each in (node, *node.ancestors()):
            self.known[each.path].num_visits -= 1
        self._exhaust(node)

    def _choose(self, most: int | None) -> list[Node]:
        chosen: list[Node] = []
        while len(chosen) < self._wanted(most):
            if self._to_roll_out:
                rollout = self._to_roll_out.pop(0).grow(to_end=True)
                self.known[rollout.path] = Visits()
                chosen.append(rollout)
                continue
            node = self._selected()
            if node is None:
                break
            chosen.append(self._expand(node))
        return chosen

    def _selected(self) -> Node | None:
        """The node that gets a child; None if the tree is full or waits for open nodes."""
        node = self.root
        while self._num_steps(node) >= self.branching:
            live = [child for child in self._live(node) if self.known[child.path].num_told]
            if not live:
                return None
            log_visits = math.log(self.known[node.path].num_visits)
            node = max(live, key=lambda child: self._bound(child, log_visits))
        return node

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

    def _bound(self, child: Node, log_visits: float) -> float:
        known = self.known[child.path]
        return known.mean + self.exploration * math.sqrt(log_visits / known.num_visits)
