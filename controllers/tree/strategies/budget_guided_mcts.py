"""Tree search that explores while the budget is ample, and finishes solutions when it runs short."""

from __future__ import annotations

import math
from statistics import fmean, pvariance

from scaffolding_ext import require
from scaffolding_ext.controllers.tree.node import Node
from scaffolding_ext.controllers.tree.strategies.base import softmax
from scaffolding_ext.controllers.tree.strategies.mcts import VisitedTree


class BudgetGuidedMCTS(VisitedTree):
    """Budget-guided search: rho, the share of the budget that is left, weighs exploration and widening.

    A node's value is the mean over its subtree of score + kappa (1 - rho) depth / d, where d is the mean depth of the
    answers so far (the deepest node, before there is one). At each node on the way down it writes one more child there
    where mean + lambda rho variance of the children's scores is at least the best child's value + rho c prior
    sqrt(ln N_parent / N), and goes on to that child where it is not.

    Args:
        completion: kappa.
        widening: lambda.
        exploration: c.
        initial: Children of a node that has none.
        root_visits: Whether visits of the root count, as in the paper's formula. The released code never counts them,
            so that it does not explore at the root at all.
        at_once: Nodes that are written at once.
        max_depth: Depth at which solutions are written to their end.

    Raises:
        ConfigError: An argument is outside its range.

    Reference:
        Miyamoto et al., "Budget-Guided Monte Carlo Tree Search", arXiv 2602.09574.

    Deviation:
        A solution that has ended is not asked to go on.
    """

    branching = 2**31  # nothing but widening bounds a node's children

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

    def _start(self) -> None:
        super()._start()
        self._depths: dict[tuple[int, ...], int] = {}  # sum of the depths of what is open in a subtree
        self._num_answers, self._answer_depths = 0, 0  # how many answers there are, and the sum of their depths
        self._deepest = 1

    def _learn(self, node: Node, score: float) -> None:
        self._back_up(node, score)
        self._deepest = max(self._deepest, node.depth)
        if node.has_ended:
            self._num_answers, self._answer_depths = self._num_answers + 1, self._answer_depths + node.depth
        for each in (node, *node.ancestors()):
            self._depths[each.path] = self._depths.get(each.path, 0) + (0 if node.has_ended else node.depth)

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

    def _selected(self) -> Node | None:
        node, rho = self.root, 1 - self.used
        while node.children:
            told = [child for child in node.children if child.path in self.score]
            if not told:
                return None  # its first children are being written
            scores = [self.score[child.path] for child in told]
            priors = softmax(scores)
            num_parent = self.known[node.path].num_visits if node.depth or self.root_visits else 1
            bounds = {
                child.path: self._bound(child, prior, rho, num_parent)
                for child, prior in zip(told, priors, strict=True)
                if not self.known[child.path].is_exhausted
            }
            best = max(bounds, key=bounds.__getitem__, default=None)
            if best is None or fmean(scores) + self.widening * rho * pvariance(scores) >= bounds[best]:
                return node
            node = node.children[best[-1]]
        return node

    def _bound(self, child: Node, prior: float, rho: float, num_parent: int) -> float:
        known = self.known[child.path]
        depth = self._answer_depths / self._num_answers if self._num_answers else self._deepest
        progress = self._depths[child.path] / known.num_told / depth
        value = known.mean + self.completion * (1 - rho) * progress
        return value + rho * self.exploration * prior * math.sqrt(math.log(num_parent) / known.num_visits)
