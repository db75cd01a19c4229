"""REBASE: the next level's steps are allocated by reward."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from scaffolding_ext import require
from scaffolding_ext.controllers.tree.node import Node
from scaffolding_ext.controllers.tree.strategies.base import LevelStrategy, open_ones, softmax

Allocation = Literal["paper", "code"]
_TEMPERATURES: dict[Allocation, float] = {"paper": 0.1, "code": 0.2}


class Rebase(LevelStrategy):
    """REBASE: each node gets children in proportion to softmax(score / T); ended solutions reduce the width.

    Args:
        width: Steps of the first level, and number of solutions in the end.
        allocation: `"paper"` rounds each share of the width; `"code"` gives each node, best first, the ceiling of its
            share of the rest.
        temperature: T; None takes the allocation's: 0.1 in the paper, 0.2 in the code.

    Reference:
        Wu et al., "Inference Scaling Laws", arXiv 2408.00724, section 3.2 (B_i = B_(i-1) - C_i; W_j = Round(B_i
        softmax_j(R / T_b))), and the released `rebase.py`.

    Deviation:
        If all shares round to 0, the best nodes get one child each; otherwise the search would end without an answer. A
        tree that is widened keeps its children: the further ones go to the nodes that have fewer than their share.
    """

    def __init__(
        self, width: int = 16, allocation: Allocation = "code", temperature: float | None = None, max_depth: int = 25
    ) -> None:
        self.width = require.whole("width", width)
        self.allocation: Allocation = require.one_of("allocation", allocation, get_args(Allocation))
        known = _TEMPERATURES[self.allocation] if temperature is None else temperature
        self.temperature = require.number("temperature", known, above=0)
        self.max_depth = require.whole("max_depth", max_depth)

    @property
    def most_leaves(self) -> int | None:
        return self.width

    def of_width(self, width: int) -> Rebase:
        return Rebase(width, self.allocation, self.temperature, self.max_depth)

    def wider(self, before: int, width: int) -> Rebase:
        return self.of_width(width)

    def _first(self) -> Iterable[Node]:
        self._num_taken: Counter[tuple[int, ...]] = Counter()
        self._left = self.width
        return [self.root] * self.width

    def _next(self, level: Sequence[Node]) -> Iterable[Node]:
        going = self.best(open_ones(level))
        self._left -= len(level) - len(going)
        if not going or self._left < 1:
            return []
        shares = softmax([self.score[node.path] for node in going], self.temperature)
        standing = [len(node.children) for node in going]  # of the narrower tree
        num_new = self._left - sum(standing)
        if any(standing):
            lacking = [max(0.0, self._left * share - old) for share, old in zip(shares, standing, strict=True)]
            shares = [each / (math.fsum(lacking) or 1.0) for each in lacking]
        counts = rounded(shares, num_new) if self.allocation == "paper" else running_ceilings(shares, num_new)
        if not any(counts):
            counts = [int(rank < num_new) for rank in range(len(going))]
        return [node for node, old, new in zip(going, standing, counts, strict=True) for _ in range(old + new)]

    def _grow(self, parent: Node) -> Node:
        number = self._num_taken[parent.path]
        self._num_taken[parent.path] += 1
        return parent.children[number] if number < len(parent.children) else super()._grow(parent)


def rounded(shares: Sequence[float], width: int) -> list[int]:
    """Nearest whole number to each share of the width, halves upward; the sum may differ from the width."""
    return [math.floor(width * share + 0.5) for share in shares]


def running_ceilings(shares: Sequence[float], width: int) -> list[int]:
    """Ceiling of each share (best first) of the remaining width; the sum never exceeds the width."""
    counts, left, total = [], width, math.fsum(shares)
    for share in shares:
        count = min(left, math.ceil(left * share / total - 1e-9)) if total > 0 else 0
        counts.append(count)
        left, total = left - count, total - share
    return counts
