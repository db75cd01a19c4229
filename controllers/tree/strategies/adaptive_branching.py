"""Adaptive branching: at every node, Thompson sampling decides between a new child and an existing one."""

from __future__ import annotations

import itertools
import math
from typing import Literal, get_args

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.tree.node import Node
from scaffolding_ext.controllers.tree.strategies.arms import Floats, Known, arm, draws
from scaffolding_ext.controllers.tree.strategies.base import Strategy

Model = Literal["gaussian", "beta", "widening"]

_FEWEST = 4  # scores of a child before it can be saturated


class AdaptiveBranching(Strategy):
    """Adaptive branching: GEN writes a new child of a node, CONT descends to a child; the larger of two draws wins.

    Args:
        model: `"gaussian"` draws from a normal-inverse-chi-square posterior (0, 1, 1, 0.1), `"beta"` from Beta(0.5,
            0.5) with fractional counts; `"widening"` allows at most k N^alpha children and takes the best upper
            confidence bound.
        widening: k and alpha.
        exploration: c of the bound, for `"widening"`.
        saturation: A subtree with at least 4 scores of which this share are equal is no longer expanded; 1 disables
            this.
        at_once: Nodes written concurrently; more than 5 make the tree wider than sequential search would.

    Reference:
        Inoue et al., "Wider or Deeper? Scaling LLM Inference-Time Compute with Adaptive Branching Tree Search", arXiv
        2503.04412 (AB-MCTS-A; the pruning is its variant M's).

    Deviation:
        The paper's equation 16 prints (m' - r)^2; the released code and textbooks have (m - r)^2, which is used here.
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
        self._known: dict[tuple[int, ...], Known] = {(): Known()}

    def _learn(self, node: Node, score: float) -> None:
        """Back a score up to the root: each parent learns it for its arm, and its view of the child below is renewed.

        A child that has ended, or that brings nothing new, is no longer an arm: from `_FEWEST` scores on, if a share
        `saturation` of them are alike.
        """
        self._known[node.path], own = Known(), arm(score)
        line = [node, *node.ancestors()]
        for below, each in itertools.pairwise(line):  # each below its parent
            known, child = self._known[each.path], self._known[below.path]
            if below is node:
                known.gen += own
            else:
                known.cont += own
            child.saw(score)
            whole = arm(self.score[below.path]) + child.gen + child.cont
            if below.has_ended or (
                self.saturation < 1 and whole[0] >= _FEWEST and child.most_alike >= self.saturation * whole[0]
            ):
                known.children.pop(below.path[-1], None)  # nothing can be written below it, or nothing new
            else:
                known.children[below.path[-1]] = whole

    def _choose(self, most: int | None) -> list[Node]:
        return [self._grow(self._selected()) for _ in range(self._wanted(most))]

    def _selected(self) -> Node:
        node = self.root
        while True:
            known = self._known.get(node.path)
            if known is None or not known.children or self._widens(node, known):
                return node
            numbers = sorted(known.children)
            arms = np.array([known.children[number] for number in numbers]).T
            node = node.children[numbers[int(self._values(arms, known).argmax())]]

    def _widens(self, node: Node, known: Known) -> bool:
        if self.model == "widening":
            k, alpha = self.widening
            return bool(len(node.children) < k * max(1, known.gen[0] + known.cont[0]) ** alpha)
        gen, cont = draws(self.model, np.stack([known.gen, known.cont], axis=1), self.rng)
        return bool(gen >= cont)

    def _values(self, arms: Floats, known: Known) -> Floats:
        """Value of each child: a draw from its posterior, or its upper confidence bound."""
        if self.model != "widening":
            return draws(self.model, arms, self.rng)
        log_visits = math.log(known.gen[0] + known.cont[0] + 1)
        return np.asarray(arms[1] / arms[0] + self.exploration * np.sqrt(log_visits / arms[0]))
