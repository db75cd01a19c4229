"""Adaptive branching: at every node chance decides between a new child and one that is there (Thompson sampling)."""

from __future__ import annotations

import math
from collections import Counter
from typing import Literal, get_args

from scaffolding_ext import require
from scaffolding_ext.controllers.tree.node import Node
from scaffolding_ext.controllers.tree.strategies.base import Strategy

Model = Literal["gaussian", "beta", "widening"]
M, KAPPA, NU, TAU2 = 0.0, 1.0, 1.0, 0.1  # priors of the Gaussian arms
A, B = 0.5, 0.5  # of the Beta arms


class Arm:
    """The scores of one choice: their number, sum and sum of squares."""

    __slots__ = ("num", "squares", "total")

    def __init__(self) -> None:
        self.num, self.total, self.squares = 0, 0.0, 0.0

    def add(self, score: float) -> None:
        self.num, self.total, self.squares = self.num + 1, self.total + score, self.squares + score * score


class AdaptiveBranching(Strategy):
    """Adaptive branching: GEN writes a new child of a node, CONT goes on to a child; the larger draw of the two wins.

    Args:
        model: What is drawn from: `"gaussian"`, the posterior mean under a normal-inverse-chi-square prior (0, 1, 1,
            0.1); `"beta"`, the posterior under Beta(0.5, 0.5) with fractional counts; `"widening"`: nothing is drawn, a
            node has up to k N^alpha children and the best upper confidence bound goes on.
        widening: k and alpha.
        exploration: c of the bound, for `"widening"`.
        saturation: A subtree of at least 4 scores of which this share are the same is left alone; 1 never is.
        at_once: Nodes that are written at once; more than 5 make the tree wider than it would be.
        max_depth: Depth at which solutions are written to their end.

    Raises:
        ConfigError: An argument is outside its range.

    Reference:
        Inoue et al., "Wider or Deeper? Scaling LLM Inference-Time Compute with Adaptive Branching Tree Search", arXiv
        2503.04412 (AB-MCTS-A; the pruning is its variant M's).

    Deviation:
        The paper's equation 16 prints (m' - r)^2; the released code and textbooks have (m - r)^2, and so has this.
    """

    def __init__(
        self,
        model: Model = "gaussian",
        widening: tuple[float, float] = (1.0, 0.5),
        exploration: float = math.sqrt(2),
        saturation: float = 0.75,
        at_once: int = 4,
        max_depth: int = 40,
    ) -> None:
        self.model: Model = require.one_of("model", model, get_args(Model))
        k, alpha = widening
        self.widening = require.number("widening", k, above=0), require.number("widening", alpha, least=0, most=1)
        self.exploration = require.number("exploration", exploration, least=0)
        self.saturation = require.share("saturation", saturation)
        self.at_once = require.whole("at_once", at_once)
        self.max_depth = require.whole("max_depth", max_depth)

    def _checked(self, score: float) -> float:
        return require.number("score", score, least=0, most=1)

    def _start(self) -> None:
        self._gen: dict[tuple[int, ...], Arm] = {}  # scores of a node's own children
        self._cont: dict[tuple[int, ...], Arm] = {}  # scores that came through its children
        self._arm: dict[tuple[int, ...], Arm] = {}  # a child's own score and those below it
        self._values: dict[tuple[int, ...], Counter[float]] = {}  # scores in a subtree, for its saturation
        self._most_alike: dict[tuple[int, ...], int] = {}  # the most frequent score's count

    def _learn(self, node: Node, score: float) -> None:
        self._arm.setdefault(node.path, Arm()).add(score)
        self._saw(node, score)
        below = node
        for each in node.ancestors():
            if below is node:
                self._gen.setdefault(each.path, Arm()).add(score)
            else:
                self._cont.setdefault(each.path, Arm()).add(score)
            if each.depth:
                self._arm.setdefault(each.path, Arm()).add(score)
                self._saw(each, score)
            below = each

    def _saw(self, node: Node, score: float) -> None:
        """Count a score of a node's subtree."""
        values = self._values.setdefault(node.path, Counter())
        values[score] += 1
        self._most_alike[node.path] = max(self._most_alike.get(node.path, 0), values[score])

    def _choose(self, most: int | None) -> list[Node]:
        return [self._grow(self._selected()) for _ in range(self._wanted(most))]

    def _selected(self) -> Node:
        node = self.root
        while True:
            live = [child for child in node.children if child.path in self.score and not self._is_left(child)]
            if not live or self._widens(node):
                return node
            if self.model == "widening":
                log_visits = math.log(self._arm_of(node).num + 1)
                node = max(live, key=lambda child: self._bound(child, log_visits))
            else:
                node = max(live, key=lambda child: self._draw(self._arm[child.path]))

    def _arm_of(self, node: Node) -> Arm:
        """All scores below a node, its own left out."""
        whole = Arm()
        for part in (self._gen.get(node.path), self._cont.get(node.path)):
            if part is not None:
                whole.num, whole.total = whole.num + part.num, whole.total + part.total
        return whole

    def _widens(self, node: Node) -> bool:
        if self.model == "widening":
            k, alpha = self.widening
            return bool(len(node.children) < k * max(1, self._arm_of(node).num) ** alpha)
        return self._draw(self._gen.get(node.path, Arm())) >= self._draw(self._cont.get(node.path, Arm()))

    def _bound(self, child: Node, log_visits: float) -> float:
        arm = self._arm[child.path]
        return arm.total / arm.num + self.exploration * math.sqrt(log_visits / arm.num)

    def _is_left(self, node: Node) -> bool:
        """Whether nothing is written below a node: it has ended, or its subtree says nothing new."""
        if node.has_ended or self.saturation == 1:
            return node.has_ended
        num = self._arm[node.path].num
        return num >= 4 and self._most_alike[node.path] >= self.saturation * num

    def _draw(self, arm: Arm) -> float:
        """A draw from an arm's posterior."""
        num = arm.num
        if self.model == "beta":
            return float(self.rng.beta(A + arm.total, B + num - arm.total))
        mean = arm.total / num if num else 0.0
        kappa, nu = KAPPA + num, NU + num
        spread = max(0.0, arm.squares - num * mean * mean)
        scale = NU * TAU2 + spread + num * KAPPA / kappa * (M - mean) ** 2
        variance = scale / self.rng.chisquare(nu)
        return float(self.rng.normal((KAPPA * M + num * mean) / kappa, math.sqrt(variance / kappa)))
