"""Rules that end the vote when enough samples agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaffolding_ext import require
from scaffolding_ext.controllers.certaindex import MIN_ANSWERS, has_answers
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes, standing_of
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote, most_samples


@dataclass(frozen=True, kw_only=True)
class AgreementDoubling(AllocationRule):
    """Draws `first` samples and doubles them at each look, until the leader's share of the votes is enough.

    Args:
        agreement: Share of the votes, by weight, that must agree, in (0.5, 1].
        first: Samples before the first look, at least 1.
        min_answers: Answers needed to stop; if fewer samples are drawn, all of them need one.

    Reference: `AdaptiveSelfConsistency` of its_hub (Red Hat AI Innovation Team), the source of the defaults of
        `agreement` and `first`.
    """

    complexity_rank = 1
    stops_when = "{0.agreement:.0%} of the answers agree"
    agreement: float = 0.75
    first: int = 2
    min_answers: int = MIN_ANSWERS

    def __post_init__(self) -> None:
        require.number("agreement", self.agreement, above=0.5, most=1)
        require.whole("first", self.first)
        require.whole("min_answers", self.min_answers)

    @classmethod
    def search_space(cls, recorded: Sequence[LabelledVote] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"doubling": [{"agreement": share} for share in (1.0, 0.9, 0.8, 0.75, 0.6, 0.51)]}

    def _num_more(self, votes: Votes) -> int:
        num_drawn = len(votes.classes)
        if num_drawn < self.first:
            return self.first - num_drawn
        standing = standing_of(votes)
        cast = standing.lead + sum(rival.num_votes for rival in standing.rivals)
        agree = has_answers(votes.classes, self.min_answers) and standing.lead >= self.agreement * cast > 0
        return 0 if agree else num_drawn

    def refuses_weights(self, most_weight: float) -> str | None:
        return None  # shares are by weight


@dataclass(frozen=True, kw_only=True)
class EarlyStoppingWindow(AllocationRule):
    """Stops after a window of `window` samples that all give one answer; all samples vote.

    Args:
        window: Samples drawn at once, at least 2.

    Reference: Li et al., "Escape Sky-high Cost: Early-stopping Self-Consistency for Multi-step Reasoning", ICLR 2024,
        arXiv 2401.10480.
    """

    complexity_rank = 2
    stops_when = "{0.window} answers in a row are equal"
    window: int = 5

    def __post_init__(self) -> None:
        require.whole("window", self.window, least=2)  # with 1, the first sample would stop the vote

    @property
    def inputs(self) -> frozenset[str]:
        return frozenset({"answers"})

    @classmethod
    def search_space(cls, recorded: Sequence[LabelledVote] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"early stopping": [{"window": size} for size in (8, 5, 4, 3, 2) if size <= most_samples(recorded)]}

    def _num_more(self, votes: Votes) -> int:
        num_over = len(votes.classes) % self.window
        if num_over:
            return self.window - num_over
        newest = set(votes.classes[-self.window :])
        return 0 if len(newest) == 1 and -1 not in newest else self.window
