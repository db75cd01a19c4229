"""Stop when the remaining samples can no longer change the winner: every answer of the full vote is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from scaffolding_ext.controllers.vote.allocation.base import Rival, SequentialRule, Standing
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote


@dataclass(frozen=True, kw_only=True)
class Curtailment(SequentialRule):
    """Stops once no class, seen or new, could overtake the leader with all the remaining samples.

    Where votes have weights, each remaining sample counts with the most that a vote can weigh.

    Reference:
        Curtailed sampling, as in acceptance sampling: Wald, "Sequential Analysis", 1947.
    """

    plainness = 1

    @classmethod
    def settings_to_try(cls, recorded: Sequence[LabelledVote] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"curtailment": [{"leap": 1.0}]}

    def is_certain(self, standing: Standing) -> bool:
        rivals = (*standing.rivals, Rival(0, False))  # a class not seen yet would come last
        further = standing.num_remaining * standing.most_weight
        return all((rival.num_votes + further, rival.wins_ties) <= (standing.lead, False) for rival in rivals)

    def refuses_weights(self, most_weight: float) -> str | None:
        return None if isfinite(most_weight) else "stops where no vote to come can matter, and has no bound on a weight"
