"""Random take-over, the baseline of conformal p-values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.draft_target.chain import Decision, DraftTargetChain
from scaffolding_ext.controllers.draft_target.take_over import SHARES, TakeOverRule
from scaffolding_ext.protocol import ControllerGenerator


class Coin(TakeOverRule):
    """Takes over at random, independent of the chunk; at 0 the draft writes everything.

    Args:
        rate: Probability of a take-over.
        scores: Let the target score the chunks anyway, which shows the cost of scoring.
    """

    @classmethod
    def search_space(cls, recorded: Sequence[Any] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"coin": [{"rate": share} for share in SHARES]}

    def __init__(self, rate: float = 0.4, scores: bool = False) -> None:
        self.rate = require.number("rate", rate, least=0, most=1)
        self.scores_chunks = scores

    def decide(self, chains: Sequence[DraftTargetChain], rngs: Sequence[np.random.Generator]) -> ControllerGenerator:
        yield from ()
        return [Decision(bool(rng.random() < self.rate), {}) for rng in rngs]
