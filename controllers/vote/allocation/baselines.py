"""Baselines: equal samples for every vote, or fewer samples if answers are short.

Reference: Fu et al., arXiv 2412.20993, baseline-even and baseline-length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote, most_samples


@dataclass(frozen=True, kw_only=True)
class Even(AllocationRule):
    """Baseline-even: every vote draws as many samples, regardless of its answers.

    Args:
        num_samples: Samples of every vote, at least 1; None draws all that the vote may have.
    """

    complexity_rank = 0
    num_samples: int | None = None

    def __post_init__(self) -> None:
        if self.num_samples is not None:
            require.whole("num_samples", self.num_samples)

    @property
    def words(self) -> str:
        return f"{'all' if self.num_samples is None else self.num_samples} have ended"

    @property
    def inputs(self) -> frozenset[str]:
        return frozenset({"size"})

    def _num_more(self, votes: Votes) -> int:
        return votes.num_remaining if self.num_samples is None else self.num_samples - len(votes.classes)

    def refuses_weights(self, most_weight: float) -> str | None:
        return None  # it looks at no vote


@dataclass(frozen=True, kw_only=True)
class LengthThreshold(AllocationRule):
    """Baseline-length: after `knob` samples, stop if they are short on average, else draw all the rest.

    Args:
        max_mean_length: Mean length in tokens up to which a vote stops, above 0.
        knob: Samples before the look, at least 1.

    Raises:
        ValueError: A setting is out of range, or, when asked, the votes carry no lengths.
    """

    stops_when = "the first {0.knob} have at most {0.max_mean_length:,.0f} tokens on average"
    max_mean_length: float
    knob: int = 5

    def __post_init__(self) -> None:
        require.number("max_mean_length", self.max_mean_length, above=0)
        require.whole("knob", self.knob)

    @property
    def inputs(self) -> frozenset[str]:
        return frozenset({"lengths"})

    @classmethod
    def search_space(cls, recorded: Sequence[LabelledVote] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        if not recorded:
            return {}
        lengths = np.concatenate([np.asarray(each.lengths, dtype=float) for each in recorded])
        cuts = sorted({float(cut) for cut in np.quantile(lengths, (0.25, 0.5, 0.75)) if cut > 0})
        knobs = (knob for knob in (1, 2, 4) if knob < most_samples(recorded))
        return {f"length, knob {n}": [{"max_mean_length": cut, "knob": n} for cut in cuts] for n in knobs}

    def _num_more(self, votes: Votes) -> int:
        if votes.lengths is None:
            raise ValueError("the votes carry no lengths; give them, or choose a rule that needs none")
        if len(votes.classes) < self.knob:
            return self.knob - len(votes.classes)
        mean = sum(votes.lengths[: self.knob]) / self.knob
        return 0 if mean <= self.max_mean_length else votes.num_remaining

    def refuses_weights(self, most_weight: float) -> str | None:
        return None  # it looks at no vote
