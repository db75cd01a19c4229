"""Tree search that explores while the budget is ample, and finishes solutions as it runs out."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.tree.node import Node
from scaffolding_ext.controllers.tree.strategies.base import Strategy
from scaffolding_ext.controllers.tree.strategies.siblings import Siblings


class BudgetGuidedMCTS(Strategy):
    """Budget-guided search: rho, the remaining share of the budget, weights exploration and widening.

    A node's value is the mean over its subtree of score + kappa (1 - rho) depth / d, with d the mean depth of the
    answers so far (the deepest node, before there are any). At each node on the way down it writes one more child if
    mean + lambda rho variance of the children's scores is at least the best child's value + rho c prior sqrt(ln
    N_parent / N), and otherwise descends to that child.

    Args:
        completion: kappa.
        widening: lambda.
        exploration: Weight c of the bound of rarely visited nodes.
        initial: Children written at once below a childless node.
        root_visits: If True, visits of the root count, as in the paper's formula; the released code never counts them.

    Reference:
        Miyamoto et al., "Budget-Guided Monte Carlo Tree Search", arXiv 2602.09574.

    Deviation:
        An ended solution is not continued.
    """

    def __init__(
        self,
        completion: float = 1.0,
        widening: float = 1.0,
        exploration: float = math.sqrt(2),
        initial: int = 2,
        root_visits: bool = True,
        at_once: int = 2,
        max_depth: int = 40,
    ) -> None:
        self.completion = require.number("completion", completion, least=0)
        self.widening = require.number("widening", widening, least=0)
        self.exploration = require.number("exploration", exploration, least=0)
        self.initial = require.whole("initial", initial)
        self.root_visits = root_visits
        self.at_once = require.whole("at_once", at_once)
        self.max_depth = require.whole("max_depth", max_depth)

    def visits(self, node: Node) -> float:
        return float(self._visits[node.path])

    def _start(self) -> None:
        self._visits: Counter[tuple[int, ...]] = Counter()
        self._num_lost: Counter[tuple[int, ...]] = Counter()  # lost children per node
        # Of told children: score, visits; of their subtrees: number told, sums of scores and of open depths; and a
        # term that closes an ended one.
        self._children: dict[tuple[int, ...], Siblings] = {(): Siblings(6)}
        self._num_answers, self._answer_depths, self._deepest = 0, 0, 1

    def _learn(self, node: Node, score: float) -> None:
        self._deepest = max(self._deepest, node.depth)
        if node.has_ended:
            self._num_answers, self._answer_depths = self._num_answers + 1, self._answer_depths + node.depth
        depth, closes = (0, -math.inf) if node.has_ended else (node.depth, 0.0)
        line = [node, *node.ancestors()]
        self._children[node.path] = Siblings(6)
        self._children[node.path[:-1]].put(node.path[-1], score, self._visits[node.path], 1, score, depth, closes)
        for each in line[1:-1]:
            self._children[each.path[:-1]].change(each.path[-1], 0, 0, 1, score, depth, 0)

    def _choose(self, most: int | None) -> list[Node]:
        chosen: list[Node] = []
        wanted = self._wanted(most)
        while len(chosen) < wanted:
            node = self._selected()
            if node is None:
                break
            count = 1 if node.children else min(self.initial, wanted - len(chosen))
            chosen += [self._expand(node) for _ in range(count)]
        return chosen

    def _expand(self, node: Node) -> Node:
        child = self._grow(node)
        self._visit(child, 1)
        return child

    def _lose(self, node: Node) -> None:
        self._num_lost[node.path[:-1]] += 1
        self._visit(node, -1)

    def _visit(self, node: Node, count: int) -> None:
        for each in (node, *node.ancestors()):
            self._visits[each.path] += count
            if each.depth:
                self._children[each.path[:-1]].change(each.path[-1], 0, count, 0, 0, 0, 0)

    def _selected(self) -> Node | None:
        node, rho = self.root, 1 - self.used
        while node.children:
            told = self._children[node.path]
            if not told.numbers:  # its first children are being written, or all are lost
                return None if len(node.children) > self._num_lost[node.path] else node
            scores, visits, nums, totals, depths, closes = told.columns
            weights = np.exp(scores - scores.max())
            log_visits = math.log(self._visits[node.path] if node.depth or self.root_visits else 1)
            d = self._answer_depths / self._num_answers if self._num_answers else self._deepest
            values = (totals + self.completion * (1 - rho) / d * depths) / nums + closes
            bounds = values + rho * self.exploration * weights / weights.sum() * np.sqrt(log_visits / visits)
            best = int(bounds.argmax())
            if scores.mean() + self.widening * rho * scores.var() >= bounds[best]:
                return node
            node = node.children[told.numbers[best]]
        return node
