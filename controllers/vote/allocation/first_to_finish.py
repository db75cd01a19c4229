"""short-m@k: start all samples at once and vote with the first to end, for low latency."""

from __future__ import annotations

from dataclasses import dataclass

from scaffolding_ext import require
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes


@dataclass(frozen=True, kw_only=True)
class FirstToFinish(AllocationRule):
    """Starts all samples and ends the vote when the first `num_first` have ended; the others are stopped.

    It saves time if samples differ in length, but few tokens: all samples decode until the last voting one ends. The
    engine's timing decides which samples end first, so two runs of one seed may differ, unlike under any other rule.

    Args:
        num_first: Samples that vote, at least 1.

    Reference: Hassid et al., "Don't Overthink it: Preferring Shorter Thinking Chains", arXiv 2505.17813.
    """

    plainness = 1
    num_first: int = 3

    def __post_init__(self) -> None:
        require.whole("num_first", self.num_first)

    @property
    def num_to_wait_for(self) -> int:
        return self.num_first

    def _num_more(self, votes: Votes) -> int:
        return 0 if votes.classes else votes.num_remaining

    def refuses_weights(self, most_weight: float) -> str | None:
        return None  # it reads no votes
