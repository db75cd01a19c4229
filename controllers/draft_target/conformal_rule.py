"""The take-over rule with a guaranteed rate: a chunk's rank among calibration scores.

Reference: A1, "Asynchronous test-time scaling via conformal prediction", equations 12 and 28.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scaffolding_ext.calibration.conformal import OnReject
from scaffolding_ext.controllers.draft_target.chain import DraftTargetChain
from scaffolding_ext.controllers.draft_target.take_over import Decision, TakeOverRule
from scaffolding_ext.maths.adaptive_conformal import AdaptiveLevel
from scaffolding_ext.maths.conformal import Ties, leave_one_out_p_values
from scaffolding_ext.maths.conformal_pools import ScorePool, TurnPools, pool_key
from scaffolding_ext.protocol import ControllerGenerator

_NO_SCORES = ScorePool()


class MarginalRule(TakeOverRule):
    """Ranks a chunk among the calibration's scores of its turn; a coin of the level where there are none.

    Args:
        alpha: Level, in [0, 1].
        pools: Scores by turn, level and policy.
        on_reject: The policy.
        ties: What a tie counts.
        adaptive: Adapts the level online; None keeps it.
    """

    def __init__(
        self, alpha: float, pools: TurnPools, on_reject: OnReject, ties: Ties, adaptive: AdaptiveLevel | None = None
    ) -> None:
        self.alpha = alpha
        self._pools, self._on_reject, self._ties, self._adaptive = pools, on_reject, ties, adaptive

    def decide(self, chains: Sequence[DraftTargetChain], rngs: Sequence[np.random.Generator]) -> ControllerGenerator:
        yield from ()
        return [self._ranked(chain, rng) for chain, rng in zip(chains, rngs, strict=True)]

    def figures(self) -> dict[str, Any]:
        return {} if self._adaptive is None else {"rate": self._adaptive.rate, "regret": self._adaptive.regret()}

    def _pool(self, turn: int) -> ScorePool:
        return self._pools.get(pool_key(turn, self.alpha, self._on_reject), _NO_SCORES)

    def _ranked(self, chain: DraftTargetChain, rng: np.random.Generator) -> Decision:
        pool = self._pool(chain.turn)
        assert chain.score is not None, "chunks are scored first"
        return self._decision(pool.p_value(chain.score, self._ties, rng), len(pool))

    def _decision(self, p_value: float, num_calibration: int) -> Decision:
        level = self.alpha if self._adaptive is None else self._adaptive.level
        taken_over = p_value <= level if self._adaptive is None else self._adaptive.decide(p_value)
        figures = {"p_value": p_value, "alpha": level, "num_calibration": num_calibration}
        return Decision(taken_over, figures, priority=p_value)


class ConditionalRule(MarginalRule):
    """Ranks a chunk among the question's own first drafts, a first draft among the others.

    Args:
        alpha: Level, in [0, 1].
        on_reject: The policy.
        ties: What a tie counts.
        adaptive: Adapts the level online; None keeps it.
    """

    def __init__(self, alpha: float, on_reject: OnReject, ties: Ties, adaptive: AdaptiveLevel | None = None) -> None:
        super().__init__(alpha, TurnPools(), on_reject, ties, adaptive)
        self._own = _NO_SCORES

    def for_request(self) -> ConditionalRule:
        return ConditionalRule(self.alpha, self._on_reject, self._ties, self._adaptive)

    def in_step(self, turn: int) -> bool:
        return turn == 0

    def decide(self, chains: Sequence[DraftTargetChain], rngs: Sequence[np.random.Generator]) -> ControllerGenerator:
        if chains[0].turn:
            return (yield from super().decide(chains, rngs))
        scores = [chain.score for chain in chains if chain.score is not None]
        self._own = ScorePool(scores)
        p_values = leave_one_out_p_values(scores, self._ties, rngs[0])
        return [self._decision(p_value, len(scores)) for p_value in p_values.tolist()]

    def _pool(self, turn: int) -> ScorePool:
        return self._own
