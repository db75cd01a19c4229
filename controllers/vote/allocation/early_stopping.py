"""Early-Stopping Self-Consistency: draw in windows, and stop after one whose answers are all equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaffolding_ext import require
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote, most_samples


@dataclass(frozen=True, kw_only=True)
class EarlyStoppingWindow(AllocationRule):
    """Stops after a window of `window` samples that all give one answer; all samples vote.

    Args:
        window: Samples drawn at once, at least 2.

    Raises:
        ValueError: The window is out of range.

    Reference:
        Li et al., "Escape Sky-high Cost: Early-stopping Self-Consistency for Multi-step Reasoning", ICLR 2024,
        arXiv 2401.10480.
    """

    plainness = 2
    window: int = 5

    def __post_init__(self) -> None:
        require.whole("window", self.window, least=2)  # with 1, the first sample would stop the vote

    @property
    def looks_at(self) -> frozenset[str]:
        return frozenset({"answers"})

    @classmethod
    def settings_to_try(cls, recorded: Sequence[LabelledVote] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"early stopping": [{"window": size} for size in (8, 5, 4, 3, 2) if size <= most_samples(recorded)]}

    def _num_more(self, votes: Votes) -> int:
        num_over = len(votes.classes) % self.window
        if num_over:
            return self.window - num_over
        newest = set(votes.classes[-self.window :])
        return 0 if len(newest) == 1 and -1 not in newest else self.window
