"""Rules that end thinking when a chain's probed answers agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from scaffolding_ext import require
from scaffolding_ext.controllers.certaindex import window_consistency
from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.controllers.chain.stopping.base import StoppingRule

_ROUNDING = 1e-12


class Consecutive(StoppingRule):
    """The last `threshold` answers are equal, none of them missing or hedged.

    Reference: the released code of Dynasor-CoT.

    Args:
        threshold: Number of successive probes that must agree, at least 1.
    """

    stops_when = "{0.threshold} answers in a row are equal"

    @classmethod
    def search_space(cls, recorded: Sequence[Any] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"equal answers": [{"threshold": threshold} for threshold in (6, 4, 3, 2)]}

    def __init__(self, threshold: int = 3) -> None:
        self.threshold = require.whole("threshold", threshold)

    def __call__(self, probes: Sequence[Probe]) -> bool:
        return self.certaindex(probes) == 1.0

    def certaindex(self, probes: Sequence[Probe]) -> float:
        classes = [-1 if probe.hedged else probe.answer_class for probe in probes]
        return window_consistency(classes, self.threshold)


class Window(StoppingRule):
    """The share C_k of the last `threshold` answers that equal the newest is at least `share`; hedged ones are ignored.

    Reference: Fu et al., "Efficiently Scaling LLM Reasoning with Certaindex" (Dynasor), the rule C_k >= tau.

    Args:
        threshold: Size w of the window, at least 1.
        share: tau, in (0, 1].
    """

    stops_when = "{0.share:.0%} of the last {0.threshold} answers equal the newest"

    @classmethod
    def search_space(cls, recorded: Sequence[Any] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        pairs = ((8, 0.75), (5, 0.8), (4, 0.75))
        return {"mostly equal answers": [{"threshold": threshold, "share": share} for threshold, share in pairs]}

    def __init__(self, threshold: int = 3, share: float = 1.0) -> None:
        self.threshold = require.whole("threshold", threshold)
        self.share = require.share("share", share)

    def __call__(self, probes: Sequence[Probe]) -> bool:
        classes = [probe.answer_class for probe in probes if not probe.hedged]
        if probes[-1].hedged or len(classes) < self.threshold:
            return False
        return window_consistency(classes, self.threshold) >= self.share

    def certaindex(self, probes: Sequence[Probe]) -> float:
        return window_consistency([probe.answer_class for probe in probes if not probe.hedged], self.threshold)


class TotalVariation(StoppingRule):
    """The answers of the last probes are distributed like those before them, in total variation (`has_stabilised`).

    Hedged answers are ignored. The chain is left with its newest answer, so that answer must be among the most frequent
    of the last `window`. docs/algorithms/dynasor_cot.md gives the cost of a guarantee.

    Reference: Fu et al., "Efficiently Scaling LLM Reasoning with Certaindex" (Dynasor), appendix E.

    Args:
        window: Probes k of a mixture, at least 1; twice as many are needed.
        tolerance: Largest total-variation distance of two mixtures, in [0, 1): a third of the paper's epsilon.
    """

    stops_when = "the answers have settled"

    @classmethod
    def search_space(cls, recorded: Sequence[Any] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        pairs = ((4, 0.0), (4, 0.25), (3, 0.34), (2, 0.0))
        return {"settled answers": [{"window": window, "tolerance": tolerance} for window, tolerance in pairs]}

    def __init__(self, window: int = 3, tolerance: float = 0.0) -> None:
        self.window = require.whole("window", window)
        self.tolerance = require.number("tolerance", tolerance, least=0, below=1)

    def __call__(self, probes: Sequence[Probe]) -> bool:
        newest = probes[-1]
        if newest.answer is None or newest.hedged:
            return False
        classes = [probe.answer_class for probe in probes if not probe.hedged]
        counts = Counter(classes[-self.window :])
        is_most_frequent = counts[newest.answer_class] == max(counts.values())
        return is_most_frequent and has_stabilised(classes, self.window, self.tolerance)


def has_stabilised(classes: Sequence[int], window: int, tolerance: float) -> bool:
    """Return True if the mixtures of the last k and of the last k - 1 probes are close to those before them.

    Mixtures of k probes only could not tell a settled chain from one whose answers cycle (A B C A B C).

    Args:
        classes: Class of each probe's answer in order, shape [num_probes]; -1 (no answer) is a class like any other.

    Reference: Certaindex, arXiv 2412.20993, appendix E, definition 2.
    """
    require.whole("window", window)
    require.number("tolerance", tolerance, least=0, below=1)
    end = len(classes)
    return end >= 2 * window and all(
        total_variation(classes[end - size :], classes[end - shift - size : end - shift]) <= tolerance + _ROUNDING
        for size in {window, max(1, window - 1)}
        for shift in range(1, size + 1)
    )


def total_variation(first: Sequence[int], second: Sequence[int]) -> float:
    """Total-variation distance of the empirical distributions of two lists of classes, in [0, 1]."""
    if not first or not second:
        raise ValueError(f"the lists hold {len(first)} and {len(second)} classes; each needs at least one")
    left, right = Counter(first), Counter(second)
    return sum(abs(left[c] / len(first) - right[c] / len(second)) for c in left.keys() | right.keys()) / 2
