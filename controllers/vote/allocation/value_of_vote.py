"""Stop when a further vote is worth less than its tokens: for votes whose samples run at once.

There a token is spent on every running sample until the vote ends, so that waiting for one more vote costs many times a
sample. `LeaderChange` bounds the chance of another winner; this rule asks how much of it a further vote takes away.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from scaffolding_ext import require
from scaffolding_ext.controllers.vote.allocation.base import Rival, SequentialRule, Standing, Votes
from scaffolding_ext.controllers.vote.allocation.leader_change import overtake_probability

_MIN_SAMPLES = 3
_NUM_AHEAD = 3  # votes: a single one seldom moves the leader, even if more would


@lru_cache(maxsize=262_144)
def chance_of_another(lead: float, rival: float, num_samples: int, size: int, num_ahead: int = 0) -> float:
    """P(the leader of a vote of `size` is not the present one), expected after `num_ahead` more votes of a Polya urn.

    The urn is that of `overtake_probability`, with leader, runner-up and a rest that holds 1 for new answers. Half of a
    tie counts. Without a runner-up, the new answers are one.
    """
    lead, rival = max(lead, rival), min(lead, rival)
    if num_samples >= size:
        return 0.0
    if not num_ahead:
        rivals = Rival(rival, True), Rival(rival, False)
        return sum(overtake_probability(lead, each, num_samples, size - num_samples, 1.0) for each in rivals) / 2
    total, rival_mass = num_samples + 1, rival or 1.0
    then = (num_samples + 1, size, num_ahead - 1)
    return (
        lead * chance_of_another(lead + 1, rival, *then)
        + rival_mass * chance_of_another(lead, rival + 1, *then)
        + (total - lead - rival_mass) * chance_of_another(lead, rival, *then)
    ) / total


@dataclass(frozen=True, kw_only=True)
class ValueOfVote(SequentialRule):
    """Stops once a further vote is expected to lower the chance of another winner by less than its tokens are worth.

    A vote costs the tokens written so far, those of running samples included, over the samples that count.

    Args:
        price: The chance of another winner that 100,000 tokens are worth: 0.03 pays so many tokens for 3 %. Above 0.
        size: Samples of the vote whose winner is asked for, however few are drawn.

    Reference: Ours, on the urn of `LeaderChange`.
    """

    complexity_rank = 2
    stops_when = "a further answer is not worth its tokens"
    leap: float = 1.0
    price: float = 0.03
    size: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        require.number("price", self.price, above=0)
        require.whole("size", self.size)

    @property
    def inputs(self) -> frozenset[str]:
        return frozenset({"counts", "lengths"})

    def standing(self, votes: Votes) -> Standing:
        if votes.lengths is None:
            raise ValueError("the votes carry no lengths; give them, or choose a rule that needs none")
        num_tokens = sum(votes.lengths) + votes.running_tokens
        return super().standing(votes)._replace(cost=num_tokens / max(1, len(votes.classes)))

    def _num_more(self, votes: Votes) -> int:
        num_lacking = _MIN_SAMPLES - len(votes.classes)
        return num_lacking if num_lacking > 0 else super()._num_more(votes)

    def is_certain(self, standing: Standing) -> bool:
        state = standing.lead, standing.runner_up, standing.num_samples, self.size
        gain = (chance_of_another(*state) - chance_of_another(*state, _NUM_AHEAD)) / _NUM_AHEAD
        return gain < self.price * standing.cost / 100_000
