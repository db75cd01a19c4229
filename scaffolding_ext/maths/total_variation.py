"""Stop probing when the distribution of the probes' answers no longer moves, in total variation.

Reference: Fu et al., "Efficiently Scaling LLM Reasoning with Certaindex", arXiv 2412.20993, appendix E.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from scaffolding_ext.maths import checks


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
    """Whether the mixture of the last `window` probes is within `tolerance` of the mixture of the `window` before.

    Args:
        classes: Class of each probe's answer in order, shape [num_probes]; -1 (no answer) is a class like others.
        window: k, probes in a mixture, at least 1; twice as many are needed.
        tolerance: Largest total-variation distance that counts as no movement, in [0, 1).

    Raises:
        ValueError: A setting is out of range.

    Reference:
        Certaindex, appendix E: a chain's answer is settled once the mixtures of its last probes' answer distributions
        are close.

    Deviation:
        The two mixtures share no probe. Windows that overlap by all but one probe differ by at most 1 / k whatever the
        chain does, and that would pass any tolerance of 1 / k for nothing.
    """
    checks.whole("window", window)
    checks.number("tolerance", tolerance, least=0, below=1)
    if len(classes) < 2 * window:
        return False
    return total_variation(classes[-window:], classes[-2 * window : -window]) <= tolerance + 1e-12
