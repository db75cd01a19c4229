"""Curves from certaindex to samples, fitted to labelled votes and read at one step or at every step.

A curve tested on the questions it was fitted to is one of the paper's skylines; on other questions it is a policy.

Reference: Fu et al., "Efficiently Scaling LLM Reasoning with Certaindex", arXiv 2412.20993, curve-fitted policies.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.certaindex import entropy_certaindex
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote, most_samples
from scaffolding_ext.errors import ConfigError


@dataclass(frozen=True)
class Curve:
    """A step function: the more certain, the fewer samples.

    Attributes:
        certaindex: Values in falling order, shape [num_steps].
        num_samples: Total samples for a vote at least as certain, shape [num_steps], not falling.
    """

    certaindex: tuple[float, ...]
    num_samples: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "certaindex", tuple(self.certaindex))
        object.__setattr__(self, "num_samples", tuple(self.num_samples))
        if not self.certaindex or len(self.certaindex) != len(self.num_samples):
            raise ConfigError(f"is {self}; give at least one step, and as many samples as values", "curve")

    @classmethod
    def of(cls, value: Curve | Mapping[str, Any]) -> Curve:
        return value if isinstance(value, Curve) else cls(**value)

    def allocated(self, certaindex: float) -> int:
        """Return the total samples; a vote less certain than all fitted votes gets the last value."""
        for least, num_samples in zip(self.certaindex, self.num_samples, strict=True):
            if certaindex >= least - 1e-12:
                return num_samples
        return self.num_samples[-1]


def fit_curve(votes: Sequence[LabelledVote], knob: int, quantile: float) -> Curve:
    """Fit the samples that votes need to be right to their certaindex after `knob` samples.

    At each value that occurs, the curve is the `quantile` of the samples needed by the votes with that value, and never
    below the curve at a higher value. Votes that are wrong with all their samples are ignored: no number of samples
    helps them.

    Args:
        votes: Labelled votes in the order drawn, each with at least `knob` samples.
        quantile: Share of the votes that get enough samples, in (0, 1].
    """
    if knob < 1 or not 0 < quantile <= 1:
        raise ValueError(f"knob {knob}, quantile {quantile}; give 1 or more, and a share in (0, 1]")
    shortest = min((len(each.classes) for each in votes), default=knob)
    if shortest < knob:
        raise ValueError(f"a vote has {shortest} samples, fewer than the knob {knob}; leave it out or lower the knob")
    needs: dict[float, list[int]] = {}
    for each in votes:
        needed = each.samples_needed()
        if needed is not None:
            value = round(entropy_certaindex(each.classes[:knob]), 9)
            needs.setdefault(value, []).append(max(knob, needed))
    if not needs:
        raise ValueError(f"none of {len(votes)} votes is right with all its samples; a curve is fitted to right ones")
    values = sorted(needs, reverse=True)
    wanted = [int(np.quantile(needs[value], quantile, method="higher")) for value in values]
    return Curve(tuple(values), tuple(int(number) for number in np.maximum.accumulate(wanted)))


KNOBS = (2, 4)  # tried by `tune`
QUANTILES = (0.95, 0.9, 0.8, 0.65)  # tried by `tune`


@dataclass(frozen=True, kw_only=True)
class InitialStepSkyline(AllocationRule):
    """Look once after `knob` samples, and draw the curve's allocation at once.

    Args:
        knob: Samples before the look.
        curve: Fitted at that knob.
    """

    is_fitted = True
    stops_when = "there are as many as the agreement of the first {0.knob} calls for"
    knob: int
    curve: Curve

    @property
    def inputs(self) -> frozenset[str]:
        return frozenset({"answers"})

    @classmethod
    def search_space(cls, recorded: Sequence[LabelledVote] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        knobs = [knob for knob in KNOBS if _can_be_fitted(recorded) and knob < most_samples(recorded)]
        return {
            f"curve at {knob}": [{"knob": knob, "curve": fit_curve(recorded, knob, share)} for share in QUANTILES]
            for knob in knobs
        }

    def __post_init__(self) -> None:
        require.whole("knob", self.knob)
        object.__setattr__(self, "curve", Curve.of(self.curve))

    def _num_more(self, votes: Votes) -> int:
        if len(votes.classes) < self.knob:
            return self.knob - len(votes.classes)
        return self.curve.allocated(entropy_certaindex(votes.classes[: self.knob])) - len(votes.classes)


@dataclass(frozen=True, kw_only=True)
class DynamicSkyline(AllocationRule):
    """Look at every knob, each with its own curve, and draw up to the next while the curve allots more.

    Args:
        knobs: Sizes at which to look, rising.
        curves: The curve fitted at each.
    """

    is_fitted = True
    stops_when = "there are as many as their agreement calls for"
    knobs: tuple[int, ...]
    curves: tuple[Curve, ...]

    @property
    def inputs(self) -> frozenset[str]:
        return frozenset({"answers"})

    @classmethod
    def search_space(cls, recorded: Sequence[LabelledVote] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        sizes = itertools.takewhile(
            lambda size: size < most_samples(recorded), (2**power for power in itertools.count(1))
        )
        knobs = tuple(sizes) if _can_be_fitted(recorded) else ()
        curves = {share: tuple(fit_curve(recorded, knob, share) for knob in knobs) for share in QUANTILES}
        return {"curves at every knob": [{"knobs": knobs, "curves": each} for each in curves.values()]} if knobs else {}

    def __post_init__(self) -> None:
        object.__setattr__(self, "knobs", tuple(self.knobs))
        object.__setattr__(self, "curves", tuple(map(Curve.of, self.curves)))
        if not self.knobs or len(self.knobs) != len(self.curves) or list(self.knobs) != sorted(set(self.knobs)):
            message = f"is {list(self.knobs)} for {len(self.curves)} curves; give rising knobs, one curve each"
            raise ConfigError(message, "knobs")

    def _num_more(self, votes: Votes) -> int:
        num_drawn = len(votes.classes)
        following = [knob for knob in self.knobs if knob > num_drawn]
        passed = [index for index, knob in enumerate(self.knobs) if knob <= num_drawn]
        next_look = following[0] if following else votes.max_samples
        if not passed:
            return next_look - num_drawn
        index = passed[-1]
        allotted = self.curves[index].allocated(entropy_certaindex(votes.classes[: self.knobs[index]]))
        return min(allotted, next_look) - num_drawn


def _can_be_fitted(votes: Sequence[LabelledVote]) -> bool:
    return len({len(each.classes) for each in votes}) == 1 and any(each.samples_needed() for each in votes)
