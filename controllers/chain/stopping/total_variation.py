"""Stop probing when the distribution of the probes' answers no longer moves, in total variation.

Reference: Fu et al., "Efficiently Scaling LLM Reasoning with Certaindex", arXiv 2412.20993, appendix E.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from scaffolding_ext import require


def total_variation(first: Sequence[int], second: Sequence[int]) -> float:
    """Total-variation distance of the empirical distributions of two lists of classes, in [0, 1].

    Raises:
        ValueError: A list is empty.
    """
    if not first or not second:
        raise ValueError(f"the lists hold {len(first)} and {len(second)} classes; each needs at least one")
    left, right = Counter(first), Counter(second)
    return sum(abs(left[c] / len(first) - right[c] / len(second)) for c in left.keys() | right.keys()) / 2


def has_stabilised(classes: Sequence[int], window: int, tolerance: float) -> bool:
    """Whether the mixture of the last `window` probes is within `tolerance` of every mixture up to `window` before.

    Args:
        classes: Class of each probe's answer in order, shape [num_probes]; -1 (no answer) is a class like others.
        window: k, probes in a mixture, at least 1; twice as many are needed.
        tolerance: Largest total-variation distance that counts as no movement, in [0, 1).

    Raises:
        ValueError: A setting is out of range.

    Reference:
        Certaindex, appendix E: a chain's answer is settled once the mixtures of its last probes' answer distributions
        are close, at every shift j from 1 to k.

    Deviation:
        A chain that goes round in a circle of 2 to k answers has not settled, though its mixtures are all alike.
    """
    require.whole("window", window)
    require.number("tolerance", tolerance, least=0, below=1)
    seen = list(classes[-2 * window :])
    if len(seen) < 2 * window or _goes_round(seen, window):
        return False
    newest = seen[window:]
    earlier = (seen[window - shift : 2 * window - shift] for shift in range(1, window + 1))
    return all(total_variation(newest, mixture) <= tolerance + 1e-12 for mixture in earlier)


def _goes_round(seen: Sequence[int], longest: int) -> bool:
    """Whether different answers come again and again in one order, with a period of at most `longest`."""
    return len(set(seen)) > 1 and any(seen[period:] == seen[:-period] for period in range(2, longest + 1))
