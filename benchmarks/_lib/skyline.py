"""The samples that an oracle buys for the votes of a data set with one budget."""

from __future__ import annotations

from collections.abc import Sequence

from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote


def skyline(votes: Sequence[LabelledVote], total_tokens: float) -> list[int]:
    """Return the samples that an oracle buys: the most correct votes that the budget can pay for.

    Every question has one sample. A correct answer then costs the samples up to the first size at which the vote is
    right. Buying the cheapest correct answers first is optimal.
    """
    drawn = [1] * len(votes)
    left = total_tokens - sum(each.lengths[0] for each in votes)
    for price, index, num_samples in sorted(
        (sum(each.lengths[1:num]), index, num)
        for index, each in enumerate(votes)
        for num in [_first_right(each)]
        if num is not None and num > 1
    ):
        left -= price
        if left < 0:
            break
        drawn[index] = num_samples
    return drawn


def _first_right(votes: LabelledVote) -> int | None:
    return next((num for num in range(1, len(votes.classes) + 1) if votes.is_right(num)), None)
