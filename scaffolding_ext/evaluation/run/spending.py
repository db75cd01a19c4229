"""Spend one token budget on the votes of a whole data set: further samples go to the least settled votes.

The budget is spent in rounds, each decided on all samples of the earlier rounds, so the order does not depend on
timing.

Reference: Fu et al., "Efficiently Scaling LLM Reasoning with Certaindex", arXiv 2412.20993, section 3.3 and D.2.1:
    certain programs give their compute up to uncertain ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from scaffolding_ext.controllers.certaindex import entropy_certaindex
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.errors import ConfigError

Claim = Callable[[Votes], tuple[float, float]]  # the vote with the lowest claim gets a sample first
ROUND_SHARE = 1 / 8  # of the questions get a sample in a round: enough for a busy engine, few enough to choose


class Round(NamedTuple):
    """Samples that may be drawn in parallel.

    Attributes:
        questions: Indices of the questions that get one further sample each, in the order of their claim.
        is_last: True if the budget ends with them, or nothing is left to draw.
    """

    questions: list[int]
    is_last: bool


def unsettledness(votes: Votes) -> tuple[float, float]:
    """Sort key: the lowest certaindex first; on a tie, the shortest samples so far."""
    return entropy_certaindex(votes.classes), mean_length(votes)


def next_round(
    questions: Sequence[Votes], total_tokens: float, claim: Claim = unsettledness, rule: AllocationRule | None = None
) -> Round:
    """Choose the questions that get a further sample.

    Every question gets one sample first. A sample's expected length is the mean length of its question's samples so
    far. The round and the spending end before the first sample that the remaining budget is not expected to cover.
    Running samples are not cut, so the last round may use more or less than was left, by at most the samples of one
    round.

    Args:
        rule: Votes that the rule calls settled get no more samples; None draws up to each vote's maximum.

    Raises:
        ValueError: The budget does not cover one sample per question, judging by the samples so far.
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
    return sum(votes.lengths) / len(votes.lengths) if votes.lengths else 0.0
