"""Particle filtering: weak solutions at a step are randomly replaced by copies of strong ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.tree.node import Node
from scaffolding_ext.controllers.tree.strategies.base import LevelStrategy, open_ones, softmax

Resampling = Literal["systematic", "multinomial"]
Weighting = Literal["last", "product"]
EndedParticles = Literal["stay", "resampled"]
_CLIP = 1e-7  # a score of 0 or 1 has infinite odds


class ParticleFilter(LevelStrategy):
    """Particle filtering: every particle writes a step, then all are resampled in proportion to their weights.

    Args:
        num_particles: Solutions written in parallel.
        resampling: `"systematic"` draws at even positions from one offset; `"multinomial"` draws one by one.
        weighting: `"last"`: the odds s / (1 - s) of the last step's score, as in the code. `"product"`: the product of
            all steps' scores, as in the paper.
        ended: `"stay"`: an ended particle is neither replaced nor copied. `"resampled"`: it is resampled with its last
            weight.
        temper_below: Weights are flattened in the first half of the levels while the effective sample size is below
            this share of the particles; 0 never flattens.
        sweeps: Particle Gibbs: consecutive filters, each but the first retaining a solution of the previous one.

    Reference:
        Puri et al., "A Probabilistic Inference Approach to Inference-Time Scaling of LLMs", arXiv 2502.01618 (filter
        and Gibbs); "Entropic Particle Filtering", arXiv 2510.05825 (tempering: T = max(1, (N / ESS)(1 - progress))).
    """

    def __init__(
        self,
        num_particles: int = 8,
        resampling: Resampling = "systematic",
        weighting: Weighting = "last",
        ended: EndedParticles = "stay",
        temper_below: float = 0.0,
        sweeps: int = 1,
        max_depth: int = 40,
    ) -> None:
        self.num_particles = require.whole("num_particles", num_particles, least=2)
        self.resampling: Resampling = require.one_of("resampling", resampling, get_args(Resampling))
        self.weighting: Weighting = require.one_of("weighting", weighting, get_args(Weighting))
        self.ended: EndedParticles = require.one_of("ended", ended, get_args(EndedParticles))
        self.temper_below = require.number("temper_below", temper_below, least=0, most=1)
        self.sweeps = require.whole("sweeps", sweeps)
        self.max_depth = require.whole("max_depth", max_depth)

    def visits(self, node: Node) -> float:
        particles = [*self._ended, *self._level, *self._new]  # of the current sweep
        return float(self._copies[node.path] + particles.count(node))

    def _checked(self, score: float) -> float:
        return require.number("score", score, least=0, most=1)

    @property
    def most_leaves(self) -> int | None:
        return self.num_particles * self.sweeps

    def of_width(self, width: int) -> ParticleFilter:
        return ParticleFilter(
            width, self.resampling, self.weighting, self.ended, self.temper_below, self.sweeps, self.max_depth
        )

    def _first(self) -> Iterable[Node]:
        self._copies: Counter[tuple[int, ...]] = Counter()
        self._kept: list[Node] = []  # the reference's nodes, from depth 1
        self._ended: list[Node] = []
        self._num_steps, self._sweeps_left = 0, self.sweeps - 1
        return [self.root] * self.num_particles

    def _next(self, level: Sequence[Node]) -> Iterable[Node]:
        self._num_steps += 1
        reference = self._kept[: self._num_steps][-1:]
        particles = [*self._ended, *level, *reference]
        if open_ones([*self._ended, *level]):
            return self._resampled(particles, self.num_particles - len(reference))
        self._copies.update(node.path for node in particles)
        self._ended = []
        if not self._sweeps_left:
            return []
        self._sweeps_left -= 1
        winner = particles[int(self._drawn(particles, 1)[0])]
        self._kept = [*reversed([node for node in winner.ancestors() if node.depth]), winner]
        self._num_steps = 0
        return [self.root] * (self.num_particles - 1)

    def _resampled(self, particles: Sequence[Node], num_free: int) -> list[Node]:
        """Parents of the next steps; drawn particles that have ended are kept."""
        if self.ended == "stay":
            self._ended = [node for node in particles if node.has_ended and node not in self._kept]
            particles, num_free = open_ones(particles), num_free - len(self._ended)
        drawn = [particles[number] for number in self._drawn(particles, num_free)]
        if self.ended == "resampled":
            self._ended = [node for node in drawn if node.has_ended]
        return open_ones(drawn)

    def _drawn(self, particles: Sequence[Node], count: int) -> list[int]:
        logs = [self._log_weight(node) for node in particles]
        weights = tempered(logs, self.temper_below, self._num_steps / self.max_depth)
        return resampled(weights, count, self.resampling, self.rng)

    def _log_weight(self, node: Node) -> float:
        if self.weighting == "last":
            score = min(1 - _CLIP, max(_CLIP, self.score[node.path]))
            return math.log(score / (1 - score))
        line = [node, *(ancestor for ancestor in node.ancestors() if ancestor.depth)]
        return math.fsum(math.log(max(_CLIP, self.score[each.path])) for each in line)


def resampled(weights: Sequence[float], count: int, resampling: Resampling, rng: np.random.Generator) -> list[int]:
    """Indices of the particles that continue, in ascending order with repeats; `weights` sum to 1."""
    if resampling == "multinomial":
        return sorted(rng.choice(len(weights), size=count, p=weights).tolist())
    positions = (rng.random() + np.arange(count)) / max(1, count)
    drawn: list[int] = np.minimum(
        np.searchsorted(np.cumsum(weights), positions, side="right"), len(weights) - 1
    ).tolist()
    return drawn


def tempered(logs: Sequence[float], below: float, progress: float) -> list[float]:
    """Normalized weights, flattened while few particles dominate.

    Args:
        logs: Log-weights of the particles.
        below: Effective sample size, as a share of the particles, below which weights are flattened.
        progress: Completed share of the levels; from one half on nothing is flattened.
    """
    weights = softmax(logs)
    share = 1 / math.fsum(weight * weight for weight in weights) / len(weights)
    if share < below and progress < 0.5:
        return softmax(logs, max(1.0, (1 - progress) / share))
    return weights
