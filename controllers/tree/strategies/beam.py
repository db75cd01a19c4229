"""Beam search over steps: the best beams of a level continue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from scaffolding_ext import require
from scaffolding_ext.controllers.tree.node import Node
from scaffolding_ext.controllers.tree.strategies.base import LevelStrategy, distinct, open_ones, shared_out

Ended = Literal["compete", "leave"]


class Beam(LevelStrategy):
    """Beam search: each level writes `width` steps; the best `keep` continue and share the next level's steps.

    Of beams with the same text only one continues.

    Breadth-first tree of thoughts is the same search: `width: 15, keep: 3` writes five thoughts after each of three.

    Args:
        width: Steps per level.
        keep: Beams that continue.
        ended: `"compete"`: an ended solution takes one of the `keep` places. `"leave"`: it leaves the beams.

    Reference:
        Snell et al., "Scaling LLM Test-Time Compute Optimally", arXiv 2408.03314 (n beams of which n / M go on, here
        `width` and `keep`); Yao et al., "Tree of Thoughts", arXiv 2305.10601 (breadth-first search).
    """

    def __init__(self, width: int = 8, keep: int = 2, max_depth: int = 40, ended: Ended = "compete") -> None:
        self.width = require.whole("width", width)
        self.keep = require.whole("keep", keep, most=width)
        self.max_depth = require.whole("max_depth", max_depth)
        self.ended: Ended = require.one_of("ended", ended, get_args(Ended))

    def _first(self) -> Iterable[Node]:
        self._finished: list[Node] = []
        return [self.root] * self.width

    def _next(self, level: Sequence[Node]) -> Iterable[Node]:
        competing = level if self.ended == "compete" else open_ones(level)
        kept = distinct(self.best([*self._finished, *competing]))[: self.keep]
        self._finished = [node for node in kept if node.has_ended]
        return shared_out(self.width, open_ones(kept))
