"""How sure a model is of one token: its entropy, from the log-probabilities of the likeliest tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

_ROUNDING = 1e-5  # of float32 log-probabilities that are summed over a vocabulary


class Entropy(NamedTuple):
    """How uncertain one token is.

    Attributes:
        nats: Its entropy, or a lower bound of it.
        missing: Probability of the tokens that were not reported; 0 where all were.
    """

    nats: float
    missing: float = 0.0

    @property
    def is_bound(self) -> bool:
        """Whether the entropy may be higher."""
        return self.missing > 0


def token_entropy(logprobs: Sequence[float]) -> Entropy:
    """The entropy of a token whose highest log-probabilities are known: exact where they sum to one, else a bound.

    A token that was not reported is at most as likely as the least likely one that was, and at most as likely as all
    missing ones together. So it adds at least its probability times the negative log of the smaller bound.

    Args:
        logprobs: Natural-log probabilities of the likeliest tokens, at least one, in any order.

    Raises:
        ValueError: There is none, or one is above 0.
    """
    if not len(logprobs):
        raise ValueError("there are no log-probabilities; at least one is needed")
    if max(logprobs) > _ROUNDING:
        raise ValueError(f"a log-probability is {max(logprobs):g}; it must be at most 0")
    probabilities = [math.exp(logprob) for logprob in logprobs]
    known = math.fsum(-p * logprob for p, logprob in zip(probabilities, logprobs, strict=True) if p)
    missing = 1.0 - math.fsum(probabilities)
    if missing <= _ROUNDING:
        return Entropy(max(0.0, known))
    largest = min(missing, *(p for p in probabilities if p))
    return Entropy(known - missing * math.log(largest), missing)
