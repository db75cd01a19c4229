"""Stop probing when the distribution of the probes' answers no longer moves, in total variation.

Reference: Fu et al., "Efficiently Scaling LLM Reasoning with Certaindex", arXiv 2412.20993, appendix E.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence


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
    if window < 1:
        raise ValueError(f"window is {window}; it must be at least 1")
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance is {tolerance}; it must lie in [0, 1)")
    if len(classes) < 2 * window:
        return False
    return total_variation(classes[-window:], classes[-2 * window : -window]) <= tolerance + 1e-12


def probes_required(num_classes: int, tolerance: float, miss: float) -> int:
    """Probes a window that bring its empirical mixture within `tolerance` of the true one, with probability 1 - `miss`.

    The smallest k with sqrt((num_classes - 1) / k) / 2 + sqrt(log(1 / miss) / (2 k)) <= tolerance: the mean distance is
    at most the first term, and bounded differences (one probe moves it by 1 / k) give the second. It holds for probes
    that are independent, each from its own distribution.

    Args:
        num_classes: Answers that can occur, at least 1.
        tolerance: Total-variation distance, in (0, 1].
        miss: Probability of being farther off, in (0, 1).

    Raises:
        ValueError: A setting is out of range.

    Reference:
        Certaindex, appendix E, Lemma 1, for the statement: enough probes bring the empirical mixtures near the true
        ones. The number is derived here, from McDiarmid, "On the method of bounded differences", 1989.
    """
    if num_classes < 1:
        raise ValueError(f"num_classes is {num_classes}; it must be at least 1")
    if not 0 < tolerance <= 1:
        raise ValueError(f"tolerance is {tolerance}; it must lie in (0, 1]")
    if not 0 < miss < 1:
        raise ValueError(f"miss is {miss}; it must lie in (0, 1)")
    scale = math.sqrt(num_classes - 1) / 2 + math.sqrt(math.log(1 / miss) / 2)
    return max(1, math.ceil((scale / tolerance) ** 2))
