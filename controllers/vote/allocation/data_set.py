"""One budget of tokens for the votes of a whole data set: further samples go where the vote is least settled.

The budget is spent in rounds, each decided on all samples of the rounds before, so the order depends on no time.

Reference: Fu et al., "Efficiently Scaling LLM Reasoning with Certaindex", arXiv 2412.20993, section 3.3 and D.2.1:
certain programs give their compute up to uncertain ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from scaffolding_ext.controllers.certaindex import entropy_certaindex
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.errors import ConfigError

Claim = Callable[[Votes], tuple[float, float]]  # the vote with the lowest claim gets a sample first
Spending = Literal["certaindex", "even"]
ROUND_SHARE = 1 / 8  # of the questions get a sample in a round: enough for a busy engine, few enough to choose


class Round(NamedTuple):
    """Samples that may be drawn side by side.

    Attributes:
        questions: Indices of the questions that get one further sample each, in the order of their claim.
        is_last: Whether the budget ends with them, or nothing is left to draw.
    """

    questions: list[int]
    is_last: bool


def unsettledness(votes: Votes) -> tuple[float, float]:
    """Sorts the least settled vote first, by certaindex; of equals, the vote with the shortest samples so far."""
    return entropy_certaindex(votes.classes), mean_length(votes)


def evenness(votes: Votes) -> tuple[float, float]:
    """Sorts the vote with the fewest samples first."""
    return len(votes.classes), 0.0


CLAIMS: dict[Spending, Claim] = {"certaindex": unsettledness, "even": evenness}


def next_round(
    questions: Sequence[Votes],
    total_tokens: float,
    claim: Claim = unsettledness,
    rule: AllocationRule | None = None,
) -> Round:
    """The questions that get a further sample.

    Every question gets one sample first. A sample is expected to be as long as the samples of its question so far, on
    average. The round ends, and the spending with it, before the first sample that the rest of the budget is not
    expected to pay for. Samples that have begun are not cut. So the last round may take more than was left, or less,
    by at most what the samples of one round take.

    Args:
        rule: Votes that the rule calls settled get no more samples; None draws up to each vote's most.

    Raises:
        ValueError: The budget does not pay for one sample a question, as far as the samples so far tell.
    """
    size = math.ceil(ROUND_SHARE * len(questions))
    left = total_tokens - sum(sum(votes.lengths or ()) for votes in questions)
    unasked = [index for index, votes in enumerate(questions) if not votes.classes]
    if unasked:
        num_asked = len(questions) - len(unasked)
        needed = len(unasked) * (total_tokens - left) / num_asked if num_asked else len(unasked)
        if needed > left:
            raise ConfigError(
                f"is {total_tokens:,}; one sample for each of {len(questions)} questions takes about "
                f"{total_tokens - left + needed:,.0f}: give more tokens, or fewer questions",
                "total_tokens",
            )
        return Round(unasked[:size], False)
    is_open = [votes.num_remaining > 0 and (rule is None or rule.num_more(votes) > 0) for votes in questions]
    ranked = sorted((i for i in range(len(questions)) if is_open[i]), key=lambda i: (*claim(questions[i]), i))[:size]
    for place, index in enumerate(ranked):
        left -= mean_length(questions[index])
        if left < 0:
            return Round(ranked[:place], True)
    return Round(ranked, not ranked)


def mean_length(votes: Votes) -> float:
    """Mean tokens of the samples so far; 0 without any."""
    return sum(votes.lengths) / len(votes.lengths) if votes.lengths else 0.0


def spend(
    votes: Sequence[LabelledVote],
    total_tokens: float,
    claim: Claim = unsettledness,
    rule: AllocationRule | None = None,
) -> list[int]:
    """Spend a budget on the votes, each giving its samples in their order."""
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
    """The purchase of an oracle that knows every sample: the most right votes that the budget can pay for.

    Every question has one sample. From there, a right answer of a question costs the samples up to the first size at
    which its vote is right. The oracle buys the cheapest right answers first, which no other choice can beat.
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
