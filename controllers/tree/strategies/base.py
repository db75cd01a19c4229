"""The contract of search strategies, and what those that go level by level share."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.tree.node import Node
from scaffolding_ext.errors import ConfigError

S = TypeVar("S", bound="Strategy")


class Strategy(ABC):
    """Decides which nodes are expanded, and how often.

    `begin` gives a copy for one search. Its `ask` grows nodes to write, its `tell` takes in the score of a node. Nodes
    may be told in any order and more than once: what was told between two `ask`s is learnt in the order of the paths.
    A subclass gives `_choose`, and `_learn` where it needs scores one by one. Constructors raise ConfigError for an
    argument outside its range.

    Attributes:
        at_once: Most nodes that are written at once; None for as many as the strategy has.
        max_depth: Depth at which solutions are written to their end.
        used: Share of the search's budget that is used, in [0, 1]; the caller keeps it.
        num_open: Nodes that were asked for and not told.
        score: Of each node that was told, by its path.
    """

    at_once: int | None = None
    max_depth: int = 40
    used: float = 0.0
    num_open: int
    score: dict[tuple[int, ...], float]

    def begin(self: S, root: Node, rng: np.random.Generator) -> S:
        """The strategy for one search; what a narrower search has written behind the root stays as it is."""
        search = copy.copy(self)
        search.root, search.rng = root, rng
        search.num_open, search.score, search._new = 0, {}, []
        search._asked = set()
        search._start()
        return search

    def ask(self, most: int | None = None) -> list[Node]:
        """At most `most` new nodes, siblings together; none where the search is over, or waits for what is open."""
        for node in sorted(self._new, key=lambda each: each.path):
            self._learn(node, self.score[node.path])
        self._new = []
        limits = [limit for limit in (most, self.at_once) if limit is not None]
        nodes = self._choose(min(limits, default=None))
        self.num_open += len(nodes)
        self._asked.update(node.path for node in nodes)
        return nodes

    def tell(self, node: Node, score: float) -> None:
        """Take in the score of a node that was asked for; a node that was told before stays as it is.

        Raises:
            ValueError: The score is not finite, or nobody asked for the node.
        """
        if node.path in self.score:
            return
        if node.path not in self._asked:
            raise ValueError(f"the node {node.path} was told, and nobody asked for it; tell what ask() has given")
        self.score[node.path] = self._checked(score)
        self.num_open -= 1
        self._new.append(node)

    def drop(self, node: Node) -> None:
        """Say that a node that was asked for is lost: nobody judges it, and nothing is written below it."""
        self._asked.remove(node.path)
        self.num_open -= 1
        self._lose(node)

    @property
    def most_leaves(self) -> int | None:
        """Most solutions that end; None where the budget alone bounds them."""
        return None

    def of_width(self, width: int) -> Strategy | None:
        """A strategy like it that ends `width` solutions; None for one that goes on as long as it is asked.

        Raises:
            ConfigError: There is no such strategy.
        """
        if self.at_once is None:
            raise ConfigError(
                f"{type(self).__name__} does not grow: take Rebase, BestOfN, ParticleFilter, MCTS, BestFirst, "
                "BudgetGuidedMCTS or AdaptiveBranching, or leave widths out",
                "widths",
            )
        return None

    def is_live(self, node: Node) -> bool:
        """Whether a node that has its score may still have children, beside those that `ask` has just given."""
        return not node.has_ended

    def visits(self, node: Node) -> float:
        """How often the strategy came by an ended node: what its vote weighs where votes are weighed by visits."""
        return 1.0

    root: Node
    rng: np.random.Generator
    _new: list[Node]
    _asked: set[tuple[int, ...]]

    def _wanted(self, most: int | None) -> int:
        """How many nodes one `ask` gives, of a strategy that always has more."""
        return most if most is not None else self.at_once or 1

    def _checked(self, score: float) -> float:
        return require.number("score", score)

    def _start(self) -> None:  # noqa: B027  (some need nothing)
        """Set up what one search needs."""

    def _learn(self, node: Node, score: float) -> None:  # noqa: B027  (some read all scores of a level)
        """Take in one score."""

    def _lose(self, node: Node) -> None:  # noqa: B027  (most never come by a node without a score)
        """Take in that a node is lost."""

    @abstractmethod
    def _choose(self, most: int | None) -> list[Node]:
        """Grow the next nodes."""

    def _grow(self, parent: Node) -> Node:
        return parent.grow(to_end=parent.depth + 1 >= self.max_depth)


class LevelStrategy(Strategy):
    """Goes level by level: when all nodes of a level are told, `_next` says which are expanded, and how often."""

    def _start(self) -> None:
        self._level: list[Node] = []
        self._queue: deque[Node] = deque(self._first())

    def _learn(self, node: Node, score: float) -> None:
        self._level.append(node)

    def _choose(self, most: int | None) -> list[Node]:
        if not self._queue and not self.num_open and self._level:
            level, self._level = sorted(self._level, key=lambda each: each.path), []
            self._queue.extend(self._next(level))
        count = len(self._queue) if most is None else min(most, len(self._queue))
        return [self._grow(self._queue.popleft()) for _ in range(count)]

    def is_live(self, node: Node) -> bool:
        return False  # it never comes back to a level

    @abstractmethod
    def _first(self) -> Iterable[Node]:
        """The parents of the first level, each as often as it has children."""

    @abstractmethod
    def _next(self, level: Sequence[Node]) -> Iterable[Node]:
        """The parents of the next level, each as often as it has children, by the last level; none ends the search."""

    def best(self, nodes: Iterable[Node]) -> list[Node]:
        """Nodes by score, best first; of equals the one with the lower path."""
        return sorted(nodes, key=lambda node: (-self.score[node.path], node.path))


def shared_out(num_children: int, parents: Sequence[Node]) -> list[Node]:
    """The parents, each as often as it has children: all alike, and the first ones one more where that leaves some."""
    if not parents:
        return []
    each, more = divmod(num_children, len(parents))
    return [parent for rank, parent in enumerate(parents) for _ in range(each + (rank < more))]


def open_ones(nodes: Iterable[Node]) -> list[Node]:
    return [node for node in nodes if not node.has_ended]


def softmax(values: Sequence[float], temperature: float = 1.0) -> list[float]:
    highest = max(values)
    weights = [math.exp((value - highest) / temperature) for value in values]
    total = math.fsum(weights)
    return [weight / total for weight in weights]
