"""Interface of search strategies, and the base of those that go level by level."""

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
    """Decides which nodes to expand, and how often.

    `begin` returns a copy for one search. Its `ask` grows nodes to write, its `tell` records the score of a node. Nodes
    may be told in any order and more than once: scores told between two `ask`s are learnt in the order of the paths. A
    subclass implements `_choose`, and `_learn` if it needs scores one by one. Constructors raise ConfigError for an
    argument outside its range.

    Attributes:
        at_once: Maximum nodes written concurrently; None is unlimited.
        max_depth: Depth at which solutions are written to their end.
        num_open: Nodes asked for but not yet told.
        score: Score of each told node, by its path.
        goes_to_ends: Each iteration ends with a solution.
    """

    at_once: int | None = None
    goes_to_ends: bool = False
    max_depth: int = 40
    num_open: int
    score: dict[tuple[int, ...], float]

    def begin(self: S, root: Node, rng: np.random.Generator) -> S:
        """Return the strategy for one search, whose tree may have nodes of a narrower search already."""
        search = copy.copy(self)
        search.root, search.rng = root, rng
        search.num_open, search.score, search._new = 0, {}, []
        search._asked = set()
        search._start()
        return search

    def ask(self, most: int | None = None) -> list[Node]:
        """Grow at most `most` new nodes, siblings together; none if the search is over or waits for open nodes."""
        for node in sorted(self._new, key=lambda each: each.path):
            self._learn(node, self.score[node.path])
        self._new = []
        limits = [limit for limit in (most, self.at_once) if limit is not None]
        nodes = self._choose(min(limits, default=None))
        self.num_open += len(nodes)
        self._asked.update(node.path for node in nodes)
        return nodes

    def tell(self, node: Node, score: float) -> None:
        """Record the score of a node that was asked for; a repeated score is ignored.

        Raises:
            ValueError: The score is not finite, or the node was not asked for.
        """
        if node.path in self.score:
            return
        if node.path not in self._asked:
            raise ValueError(f"the node {node.path} was not asked for; tell only nodes from ask()")
        self.score[node.path] = self._checked(score)
        self.num_open -= 1
        self._new.append(node)

    def drop(self, node: Node) -> None:
        """Mark a node that was asked for as lost: it gets no score, and nothing is written below it."""
        self._asked.remove(node.path)
        self.num_open -= 1
        self._lose(node)

    @property
    def most_leaves(self) -> int | None:
        """Maximum finished solutions; None if only the budget bounds them."""
        return None

    def of_width(self, width: int) -> Strategy | None:
        """Return a strategy like it that finishes `width` solutions; None if it runs as long as it is asked.

        Raises:
            ConfigError: There is no such strategy.
        """
        if self.at_once is None:
            raise ConfigError(
                f"{type(self).__name__} does not grow: use Rebase, BestOfN, ParticleFilter, MCTS, BestFirst or "
                "AdaptiveBranching, or leave out widths",
                "widths",
            )
        return None

    def wider(self, before: int, width: int) -> Strategy | None:
        """Return the strategy that widens a tree of `before` solutions to `width`, by default at its root."""
        return self.of_width(width - before)

    def is_live(self, node: Node) -> bool:
        """True if a scored node may still get children, beside those that `ask` has just returned."""
        return not node.has_ended

    def visits(self, node: Node) -> float:
        """Visits of an ended node, its weight in a vote weighted by visits."""
        return 1.0

    root: Node
    rng: np.random.Generator
    _new: list[Node]
    _asked: set[tuple[int, ...]]

    def _wanted(self, most: int | None) -> int:
        """Number of nodes for one `ask`, for a strategy that never runs out."""
        return most if most is not None else self.at_once or 1

    def _checked(self, score: float) -> float:
        return require.number("score", score)

    def _start(self) -> None:  # noqa: B027  (some need nothing)
        """Set up the state of one search."""

    def _learn(self, node: Node, score: float) -> None:  # noqa: B027  (some read all scores of a level)
        """Learn one score."""

    def _lose(self, node: Node) -> None:  # noqa: B027  (most never come by a node without a score)
        """Handle a lost node."""

    @abstractmethod
    def _choose(self, most: int | None) -> list[Node]:
        """Grow the next nodes."""

    def _grow(self, parent: Node) -> Node:
        return parent.grow(to_end=parent.depth + 1 >= self.max_depth)


class LevelStrategy(Strategy):
    """Goes level by level: once a level is scored, `_next` decides which nodes to expand, and how often."""

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
        return False  # it never returns to a level

    @abstractmethod
    def _first(self) -> Iterable[Node]:
        """Parents of the first level, each repeated per child."""

    @abstractmethod
    def _next(self, level: Sequence[Node]) -> Iterable[Node]:
        """Parents of the next level, each repeated per child, from the last level; empty ends the search."""

    def best(self, nodes: Iterable[Node]) -> list[Node]:
        """Nodes by score, best first; ties go to the lower path."""
        return sorted(nodes, key=lambda node: (-self.score[node.path], node.path))


def distinct(nodes: Iterable[Node]) -> list[Node]:
    """The first node of each text; nodes whose text is unknown all stay."""
    found = {node.path if node.text is None else node.text: node for node in reversed(list(nodes))}
    return list(reversed(found.values()))


def shared_out(num_children: int, parents: Sequence[Node]) -> list[Node]:
    """Parents repeated per child: evenly, with any remainder going to the first."""
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
