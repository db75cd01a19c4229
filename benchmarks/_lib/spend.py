"""One token budget, spent on recorded votes."""

from __future__ import annotations

from collections.abc import Sequence

from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.evaluation.run.spending import Claim, next_round, unsettledness


def spend(
    votes: Sequence[LabelledVote],
    total_tokens: float,
    claim: Claim = unsettledness,
    rule: AllocationRule | None = None,
) -> list[int]:
    """Spend a budget on recorded votes; return the samples drawn for each."""
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
