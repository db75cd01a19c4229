"""Certaindex against a threshold, at one step of the vote or at every step."""

from __future__ import annotations

from dataclasses import dataclass

from scaffolding_ext.maths.allocation.base import AllocationRule, Votes
from scaffolding_ext.maths.certaindex import Threshold, is_certain


@dataclass(frozen=True, kw_only=True)
class StaticThreshold(AllocationRule):
    """Look once, after `knob` samples: stop where certain, else draw all the rest.

    Args:
        threshold: Least entropy certaindex.
        knob: Samples before the look, at least 1.
        reward_thresholds: Further measures that must reach a threshold too; they need the samples' rewards.

    Raises:
        ValueError: The knob is out of range.

    Reference:
        Certaindex, arXiv 2412.20993: the detection knob and the static threshold policy.
    """

    threshold: float = 0.7
    knob: int = 5
    reward_thresholds: tuple[Threshold, ...] = ()

    def __post_init__(self) -> None:
        if self.knob < 1:
            raise ValueError(f"knob is {self.knob}; it must be at least 1")

    def _num_more(self, votes: Votes) -> int:
        if len(votes.classes) < self.knob:
            return self.knob - len(votes.classes)
        thresholds = (Threshold("entropy", self.threshold), *self.reward_thresholds)
        first = votes.classes[: self.knob]
        rewards = None if votes.rewards is None else votes.rewards[: self.knob]
        return 0 if is_certain(thresholds, first, rewards) else votes.num_remaining


@dataclass(frozen=True, kw_only=True)
class ThresholdEvery(AllocationRule):
    """Look after every `step` samples and stop as soon as certain.

    Args:
        threshold: Least entropy certaindex.
        step: Samples between looks, at least 1.
        reward_thresholds: Further measures that must reach a threshold too; they need the samples' rewards.

    Raises:
        ValueError: The step is out of range.

    Reference:
        Certaindex, arXiv 2412.20993: the threshold policy applied every few steps.
    """

    threshold: float = 0.7
    step: int = 5
    reward_thresholds: tuple[Threshold, ...] = ()

    def __post_init__(self) -> None:
        if self.step < 1:
            raise ValueError(f"step is {self.step}; it must be at least 1")

    def _num_more(self, votes: Votes) -> int:
        thresholds = (Threshold("entropy", self.threshold), *self.reward_thresholds)
        if votes.classes and is_certain(thresholds, votes.classes, votes.rewards):
            return 0
        return self.step
