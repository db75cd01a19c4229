"""What a budget for a data set would have bought of samples that were drawn before, and what an oracle would buy."""

from __future__ import annotations

from collections.abc import Sequence

from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.controllers.vote.allocation.data_set import Claim, next_round, unsettledness
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote


def spend(
    votes: Sequence[LabelledVote],
    total_tokens: float,
    claim: Claim = unsettledness,
    rule: AllocationRule | None = None,
) -> list[int]:
    """Spend a budget on the votes, each giving its samples in their order.

    Args:
        votes: All samples of each question.
        total_tokens: The budget.
        claim: As `next_round` takes it.
        rule: As `next_round` takes it.

    Returns:
        How many samples each question got, shape [num_questions].

    Raises:
        ValueError: The budget does not pay for one sample a question.
    """
    drawn = [0] * len(votes)
    is_last = False
    while not is_last:
        so_far = [
            Votes(each.classes[:num], len(each.classes), lengths=each.lengths[:num])
            for each, num in zip(votes, drawn, strict=True)
        ]
        questions, is_last = next_round(so_far, total_tokens, claim, rule)
        for index in questions:
            drawn[index] += 1
    return drawn


def skyline(votes: Sequence[LabelledVote], total_tokens: float) -> list[int]:
    """What an oracle buys that knows every sample: the most right votes that the budget can pay for.

    After one sample a question, which all have, a question is worth one right answer at the price of the samples up to
    the first at which its vote is right; the cheapest are bought first, which no other choice can beat.

    Args:
        votes: All samples of each question.
        total_tokens: The budget; where it does not pay for one sample a question, that is what is bought.

    Returns:
        How many samples each question gets, shape [num_questions].
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
    """The fewest samples whose vote is right."""
    return next((num for num in range(1, len(votes.classes) + 1) if votes.is_right(num)), None)
