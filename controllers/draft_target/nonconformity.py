"""Nonconformity scores of a chunk from its tokens' log-probabilities under another model: the higher, the stranger."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

NonconformityScore = Callable[[Sequence[float]], float]

_TAIL_SHARE = 0.1


def mean_nll(logprobs: Sequence[float]) -> float:
    """Mean negative log-likelihood of the tokens, in nats; its exponential is the perplexity, in the same order.

    Reference:
        A1, equation 11.

    Deviation:
        The released code leaves the chunk's first token out.
    """
    return -float(np.mean(logprobs))


def tail_nll(logprobs: Sequence[float]) -> float:
    """Mean negative log-likelihood of the least likely tenth of the tokens, at least one: one bad step shows."""
    worst = np.sort(logprobs)[: max(1, round(_TAIL_SHARE * len(logprobs)))]
    return -float(np.mean(worst))


def max_nll(logprobs: Sequence[float]) -> float:
    """Negative log-likelihood of the least likely token."""
    return -float(np.min(logprobs))


SCORES: dict[str, NonconformityScore] = {"mean_nll": mean_nll, "tail_nll": tail_nll, "max_nll": max_nll}
