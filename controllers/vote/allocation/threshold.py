"""Certaindex against a threshold, at one step of the vote or at every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.certaindex import MIN_ANSWERS, Measure, Threshold, is_certain, measure_value
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote, most_samples

KNOBS = (2, 4, 5)  # samples before or between looks, tried by `tune`
THRESHOLDS = (1.0, 0.8, 0.7, 0.5)  # tried by `tune`
BESIDE_REWARDS = (0.9, 0.5, 0.0)  # entropy thresholds tried beside a reward threshold
REWARD_MEASURES: tuple[Measure, ...] = ("mean_reward", "max_reward")
REWARD_QUANTILES = (0.25, 0.5, 0.75)  # of the questions' rewards, tried as thresholds


@dataclass(frozen=True, kw_only=True)
class CertaindexRule(AllocationRule):
    """Base of the rules that compare certaindex with a threshold.

    Args:
        threshold: Least entropy certaindex.
        reward_thresholds: Further measures that must reach a threshold too; they need the samples' rewards.
        min_answers: Answers needed to stop; if fewer samples are drawn, all of them need one.
    """

    complexity_rank = 2
    threshold: float = 0.7
    reward_thresholds: tuple[Threshold, ...] = ()
    min_answers: int = MIN_ANSWERS

    def __post_init__(self) -> None:
        require.number("threshold", self.threshold, least=0, most=1)
        require.whole("min_answers", self.min_answers)
        object.__setattr__(self, "reward_thresholds", tuple(map(Threshold.of, self.reward_thresholds)))

    @property
    def inputs(self) -> frozenset[str]:
        return frozenset({"counts", "rewards"} if self.reward_thresholds else {"counts"})

    def is_certain(self, votes: Votes, num_samples: int) -> bool:
        thresholds = (Threshold("entropy", self.threshold), *self.reward_thresholds)
        rewards = None if votes.rewards is None else votes.rewards[:num_samples]
        return is_certain(thresholds, votes.classes[:num_samples], rewards, self.min_answers)


@dataclass(frozen=True, kw_only=True)
class StaticThreshold(CertaindexRule):
    """Look once, after `knob` samples: stop if certain, else draw all the rest.

    Args:
        knob: Samples before the look, at least 1.

    Reference: Certaindex, arXiv 2412.20993: the detection knob and the static threshold policy.
    """

    stops_when = "the first {0.knob} answers agree enough (certaindex {0.threshold:g})"
    knob: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        require.whole("knob", self.knob)

    @classmethod
    def search_space(cls, recorded: Sequence[LabelledVote] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return _lists("knob", recorded)

    def _num_more(self, votes: Votes) -> int:
        if len(votes.classes) < self.knob:
            return self.knob - len(votes.classes)
        return 0 if self.is_certain(votes, self.knob) else votes.num_remaining


@dataclass(frozen=True, kw_only=True)
class ThresholdEvery(CertaindexRule):
    """Look after every `step` samples and stop as soon as certain.

    Args:
        step: Samples between looks, at least 1.

    Reference: Certaindex, arXiv 2412.20993: the threshold policy applied every few steps.
    """

    stops_when = "the answers agree enough (certaindex {0.threshold:g}, looked at by {0.step})"
    step: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        require.whole("step", self.step)

    @classmethod
    def search_space(cls, recorded: Sequence[LabelledVote] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return _lists("step", recorded)

    def _num_more(self, votes: Votes) -> int:
        return 0 if votes.classes and self.is_certain(votes, len(votes.classes)) else self.step


def _lists(name: str, votes: Sequence[LabelledVote]) -> dict[str, list[dict[str, Any]]]:
    lists: dict[str, list[dict[str, Any]]] = {}
    for number in (number for number in KNOBS if number < most_samples(votes)):
        where = f"certaindex, {name} {number}"
        lists[where] = [{"threshold": least, name: number} for least in THRESHOLDS]
        rewarded = [{name: number, **both} for both in _conjunctions(votes, number)]
        if rewarded:
            lists[f"{where}, rewards"] = rewarded
    return lists


def _conjunctions(votes: Sequence[LabelledVote], knob: int) -> list[dict[str, Any]]:
    """Return thresholds of the entropy and a reward measure; none if there are no rewards.

    Reward scores may be crowded anywhere in [0, 1], so the cuts are quantiles of the votes' rewards after `knob`
    samples.
    """
    if any(each.rewards is None for each in votes):
        return []
    found = []
    for measure in REWARD_MEASURES:
        values = [measure_value(measure, (), (each.rewards or ())[:knob]) for each in votes]
        cuts = sorted({round(float(cut), 3) for cut in np.quantile(values, REWARD_QUANTILES)})
        found += [
            {"threshold": least, "reward_thresholds": (Threshold(measure, cut),)}
            for cut in cuts
            for least in BESIDE_REWARDS
        ]
    return found
