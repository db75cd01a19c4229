"""What a tree of branches costs in seconds, shared and not, and from how many branches on sharing pays.

Reference: RKSC, equations 6 to 10.

Deviation: The paper counts layers; here a pass costs what its tokens and its attention pairs say, with three constants
that are fitted to timings, so that the break-even follows from measured passes, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from scaffolding_ext import require


class Pass(NamedTuple):
    """One forward pass.

    Attributes:
        num_rows: Sequences in it.
        num_tokens: New tokens of each.
        num_cached: Tokens of each whose KV is there already.
    """

    num_rows: int
    num_tokens: int
    num_cached: int = 0

    @property
    def size(self) -> tuple[float, float, float]:
        """What the pass consists of: itself, its tokens, and its pairs of a token and one that it attends to."""
        tokens = self.num_rows * self.num_tokens
        return 1.0, tokens, tokens * (self.num_cached + (self.num_tokens + 1) / 2)


class LatencyModel(NamedTuple):
    """Seconds of a pass, of each of its tokens, and of each of its pairs (T_pass = c0 + c1 tokens + c2 pairs)."""

    per_pass: float
    per_token: float
    per_pair: float

    @classmethod
    def fit(cls, passes: Sequence[Pass], seconds: Sequence[float]) -> LatencyModel:
        """The constants, none below 0, that explain timings with the least squared relative error.

        Args:
            passes: What was timed, at least three.
            seconds: How long each took, above 0.

        Raises:
            ValueError: There are fewer than three, not as many seconds, or one that is not above 0.
        """
        if len(passes) < 3 or len(passes) != len(seconds):
            raise ValueError(f"{len(passes)} passes and {len(seconds)} timings; give at least three of each")
        taken = np.array([require.number(f"seconds[{i}]", each, above=0) for i, each in enumerate(seconds)])
        sizes = np.array([each.size for each in passes], dtype=float)
        return cls(*map(float, nnls(sizes / taken[:, None], np.ones(len(taken)))[0]))

    def seconds(self, *passes: Pass) -> float:
        """How long passes take, one after the other."""
        return math.fsum(constant * part for each in passes for constant, part in zip(self, each.size, strict=True))


class Workload(NamedTuple):
    """One problem.

    Attributes:
        num_branches: B.
        prefix_len: n: tokens that all branches share.
        suffix_len: Tokens of a branch's own before it decodes.
        num_decoded: t: tokens that each branch decodes.
        verdict_len: Tokens of the question that asks for its verdict.
    """

    num_branches: int
    prefix_len: int
    suffix_len: int
    num_decoded: int
    verdict_len: int

    def reading(self, *, shares: bool) -> list[Pass]:
        """Prefix and suffixes: the prefix once for all, or by each branch anew."""
        if shares:
            return [Pass(1, self.prefix_len), Pass(self.num_branches, self.suffix_len, self.prefix_len)]
        return [Pass(self.num_branches, self.prefix_len + self.suffix_len)]

    def decoding(self) -> list[Pass]:
        """All branches together, a token a pass."""
        start = self.prefix_len + self.suffix_len
        return [Pass(self.num_branches, 1, start + step) for step in range(self.num_decoded)]

    def verdicts(self, *, keeps_kv: bool) -> list[Pass]:
        """The verdicts of all branches: each reads its question alone, or everything anew."""
        written = self.prefix_len + self.suffix_len + self.num_decoded
        if keeps_kv:
            return [Pass(self.num_branches, self.verdict_len, written)]
        return [Pass(self.num_branches, written + self.verdict_len)]


def unshared_seconds(model: LatencyModel, work: Workload) -> float:
    """No-KV: every branch reads the prefix, and again for its verdict (equation 6)."""
    return model.seconds(*work.reading(shares=False), *work.decoding(), *work.verdicts(keeps_kv=False))


def shared_seconds(
    model: LatencyModel, work: Workload, *, keeps_kv: bool = True, skip_rate: float = 0.0, depth: float = 1.0
) -> float:
    """The prefix is read once (equation 7), and verdicts cost what is left of them (equations 8 and 9).

    Args:
        model: Fitted constants.
        work: The problem.
        keeps_kv: Whether a verdict reads its question alone; the paper's baseline has it read everything anew.
        skip_rate: Share of the problems whose verdicts are skipped, in [0, 1].
        depth: Mean share of the layers that a verdict runs through, in [0, 1].

    Raises:
        ValueError: A share is outside its range.
    """
    asked = 1.0 - require.number("skip_rate", skip_rate, least=0, most=1)
    verdicts = model.seconds(*work.verdicts(keeps_kv=keeps_kv)) * require.number("depth", depth, least=0, most=1)
    return model.seconds(*work.reading(shares=True), *work.decoding()) + asked * verdicts


def net_saving(whole: float, prefix: float, suffixes: float) -> float:
    """Seconds that sharing saves: of a batch that reads everything, less the prefix once and the suffixes behind it.

    Reference:
        RKSC, table 9 (the probe that decides whether sharing pays).
    """
    return whole - (prefix + suffixes)
