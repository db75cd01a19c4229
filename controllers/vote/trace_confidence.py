"""DeepConf's formulas: the confidence of a trace, the votes it casts, and the online threshold.

Reference: Fu et al., "Deep Think with Confidence" (DeepConf), arXiv 2508.15260.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.protocol.task_results import highest_logprobs


def token_confidence(step: Mapping[int, Any], top_k: int) -> float:
    """Return the negative mean of the k highest log-probabilities reported at a position, in nats.

    Reference: DeepConf, section 3.
    """
    highest = highest_logprobs(step, top_k)
    return -math.fsum(highest) / len(highest)


def filtered_weights(classes: Sequence[int], confidences: Sequence[float], keep_share: float) -> list[float]:
    """Weigh the most confident traces by their confidence and the others by 0, as in DeepConf's offline vote.

    Args:
        keep_share: eta as a share, in (0, 1], of which at least one trace is kept: 0.1 or 0.9 in the paper.

    Reference: DeepConf, sections on confidence filtering and offline thinking.
    """
    require.share("keep_share", keep_share)
    if len(confidences) != len(classes):
        raise ValueError(f"{len(confidences)} confidences for {len(classes)} traces: give one for each trace")
    answered = [index for index, number in enumerate(classes) if number != -1]
    ranked = sorted(answered, key=lambda index: -confidences[index])
    kept = set(ranked[: math.ceil(keep_share * len(answered) - 1e-9)])
    return [confidence if index in kept else 0.0 for index, confidence in enumerate(confidences)]


def warm_up_threshold(lowest: Sequence[float], keep_share: float) -> float:
    """Return the stopping threshold: the (1 - keep_share) quantile of the warm-up's lowest group confidences.

    Args:
        keep_share: eta as a share, in (0, 1]: about this share of the warm-up would have run to its end.

    Reference: DeepConf, section on online thinking.
    """
    if not len(lowest):
        raise ValueError("the warm-up has no traces; at least one is needed")
    require.share("keep_share", keep_share)
    return float(np.quantile(np.asarray(lowest, dtype=float), 1.0 - keep_share))


class RunningGroupConfidence:
    """Confidence of a growing trace's newest group, in constant time per token."""

    def __init__(self, group_size: int) -> None:
        require.whole("group_size", group_size)
        self.num_tokens = 0
        self._group: deque[float] = deque(maxlen=group_size)
        self._sum = 0.0
        self._lowest = math.inf

    @property
    def lowest(self) -> float:
        """Lowest group confidence so far.

        A trace shorter than one group is one group; an empty trace has infinite confidence.
        """
        if self._group and self.num_tokens < (self._group.maxlen or 0):
            return self._sum / len(self._group)
        return self._lowest

    def add(self, confidence: float) -> float:
        """Add a token; return the newest full group's confidence, infinity while none is full."""
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
