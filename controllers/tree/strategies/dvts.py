"""Diverse verifier tree search: several independent greedy trees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from scaffolding_ext import require
from scaffolding_ext.controllers.tree.node import Node
from scaffolding_ext.controllers.tree.strategies.base import LevelStrategy, open_ones


class DVTS(LevelStrategy):
    """Diverse verifier tree search: each of `trees` trees writes `copies` steps and continues with its best.

    Args:
        trees: Independent trees.
        copies: Steps to choose among per tree.

    Reference:
        Beeching, Tunstall and Rush, "Scaling test-time compute with open models", 2024 (n / M trees, here `trees`, of
        beam width M, here `copies`).

    Deviation:
        The released code returns unfinished siblings as answers; here only ended solutions are answers.
    """

    def __init__(self, trees: int = 2, copies: int = 4, max_depth: int = 40) -> None:
        self.trees = require.whole("trees", trees)
        self.copies = require.whole("copies", copies)
        self.max_depth = require.whole("max_depth", max_depth)

    @property
    def most_leaves(self) -> int | None:
        return self.trees * self.copies

    def _first(self) -> Iterable[Node]:
        return [self.root] * (self.trees * self.copies)

    def _next(self, level: Sequence[Node]) -> Iterable[Node]:
        groups = groupby(level, key=lambda node: node.path[0] // self.copies)
        best = [self.best(group)[0] for _, group in groups]
        return [node for node in open_ones(best) for _ in range(self.copies)]
