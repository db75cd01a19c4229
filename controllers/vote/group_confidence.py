"""What DeepConf's online form needs beyond a trace's confidence: a threshold from a warm-up, and a running group.

Reference: Fu et al., "Deep Think with Confidence" (DeepConf), arXiv 2508.15260, section on online thinking.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from scaffolding_ext import require


def warm_up_threshold(lowest: Sequence[float], keep_share: float) -> float:
    """The confidence below which a trace is stopped: the (1 - keep_share) quantile of the warm-up's lowest groups.

    Args:
        lowest: Lowest group confidence of each trace of the warm-up, in nats, at least one.
        keep_share: eta as a share, in (0, 1]: about this share of the warm-up would have gone on to its end.

    Raises:
        ValueError: There is no trace, or `keep_share` is out of range.
    """
    if not len(lowest):
        raise ValueError("the warm-up has no traces; at least one is needed")
    require.share("keep_share", keep_share)
    return float(np.quantile(np.asarray(lowest, dtype=float), 1.0 - keep_share))


class RunningGroupConfidence:
    """The confidence of a growing trace's newest group, in constant time a token.

    Args:
        group_size: Tokens in a group, at least 1.

    Attributes:
        num_tokens: Tokens so far.

    Raises:
        ValueError: `group_size` is below 1.
    """

    def __init__(self, group_size: int) -> None:
        require.whole("group_size", group_size)
        self.num_tokens = 0
        self._group: deque[float] = deque(maxlen=group_size)
        self._sum = 0.0
        self._lowest = math.inf

    @property
    def lowest(self) -> float:
        """The least sure group so far; a trace shorter than one group is a group, and an empty one is infinitely sure.

        It equals `trace_confidence(..., "lowest_group")` of the tokens so far.
        """
        if self._group and self.num_tokens < (self._group.maxlen or 0):
            return self._sum / len(self._group)
        return self._lowest

    def add(self, confidence: float) -> float:
        """Add a token; returns the newest full group's confidence, infinity while none is full."""
        self.num_tokens += 1
        if len(self._group) == self._group.maxlen:
            self._sum -= self._group[0]
        self._group.append(confidence)
        self._sum += confidence
        if len(self._group) < (self._group.maxlen or 0):
            return math.inf
        newest = self._sum / len(self._group)
        self._lowest = min(self._lowest, newest)
        return newest
