"""One budget of tokens for the votes of a whole recording, spent where votes are least settled.

It is `controllers.vote.allocation.data_set.spend` with its default claim, on many orders of the samples at once.
"""

from __future__ import annotations

import math

import numpy as np

from scaffolding_ext.controllers.certaindex import entropy_certaindex
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule
from scaffolding_ext.controllers.vote.allocation.data_set import ROUND_SHARE
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.trial.ended import Floats, Ints
from scaffolding_ext.evaluation.trial.orders import OrderedVotes
from scaffolding_ext.evaluation.trial.vote_replay import Decisions


def spend_on_all(votes: OrderedVotes, rule: AllocationRule | None, total_tokens: float, num_samples: int) -> Ints:
    """Samples of each row, where every order of the questions has the budget for itself.

    Args:
        votes: The samples.
        rule: Votes that it calls settled get no more samples; None draws up to the most.
        total_tokens: The budget of all questions together.
        num_samples: The most samples of a question.

    Raises:
        ConfigError: The budget does not pay for one sample a question.
    """
    states = votes.by_counts
    certain = [
        entropy_certaindex(votes.classes[row, :size].tolist())
        for row, size in zip(states.rows.tolist(), states.sizes.tolist(), strict=True)
    ]
    claims: Floats = np.array(certain)[states.numbers]
    lengths = votes.ordered(votes.samples.tokens)
    decisions = Decisions(votes, rule, num_samples)
    drawn = np.ones(len(lengths), dtype=np.int64)
    for order in np.split(np.arange(len(lengths)), len(votes.orders)):
        left = total_tokens - float(lengths[order, 0].sum())
        if left < 0:
            raise ConfigError(
                f"is {total_tokens:,.0f}; one sample for each of {len(order)} questions takes "
                f"{total_tokens - left:,.0f}: give more tokens",
                "total_tokens",
            )
        totals = lengths[order, 0].astype(float)
        size = math.ceil(ROUND_SHARE * len(order))
        while True:
            own = drawn[order]
            open_ = np.flatnonzero((own < num_samples) & (decisions.num_more(order, own) > 0))
            means = totals[open_] / own[open_]
            ranked = open_[np.lexsort((open_, means, claims[order[open_], own[open_]]))][:size]
            is_paid = np.cumsum(totals[ranked] / own[ranked]) <= left
            taken = ranked if is_paid.all() else ranked[: int(np.argmin(is_paid))]
            new = lengths[order[taken], own[taken]]
            drawn[order[taken]] += 1
            totals[taken] += new
            left -= float(new.sum())
            if len(taken) < len(ranked) or not len(ranked):
                break
    return drawn
