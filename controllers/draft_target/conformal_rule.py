"""Take-over rule with a guaranteed rate: a chunk's rank among calibration scores."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.draft_target.adaptive import AdaptiveLevel
from scaffolding_ext.controllers.draft_target.calibration_file import ConformalCalibration, DraftTargetSetting
from scaffolding_ext.controllers.draft_target.chain import Decision, DraftTargetChain
from scaffolding_ext.controllers.draft_target.p_values import Ties, leave_one_out_p_values
from scaffolding_ext.controllers.draft_target.scores import Pool, ScorePool
from scaffolding_ext.controllers.draft_target.take_over import SHARES, TakeOverRule
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import ControllerGenerator
from scaffolding_ext.registry import take_over_rules

Coverage = Literal["marginal", "conditional"]
ONLINE = "online"
_NO_SCORES = ScorePool()


class ConformalRule(TakeOverRule):
    """Lets the target take over chunks that are strange among calibration scores, at a guaranteed rate.

    Args:
        alpha: Share of the chunks that the target takes over, in [0, 1]; with an adaptive step in (0, 1). A1 uses 0.4.
        coverage: `"marginal"` ranks a chunk among those of its turn in the calibration, `"conditional"` among the first
            drafts of its question; alpha then holds on the first turn only.
        calibration: A calibration, or its file; required for marginal coverage. At turns that no calibration chain
            reached, a coin decides. `"online"` lets `eval` make one on its own questions before it answers them, as A1
            does.
        ties: `"random"` keeps the rate at alpha even if scores tie; `"conservative"` keeps it at most at alpha.
        pool: `"per_turn"` ranks a chunk among those of its turn, `"first_turn"` among the first turn's, as A1's code
            does; alpha then holds on the first turn only.
        any_chunk_len: Take a calibration of chunks of another length, as in A1's figure 6 (500 tokens for 700); alpha
            then holds nowhere.
        adaptive_step: With a step, the level adapts online so that the rate stays at alpha under drift; decisions then
            depend on the order of requests.
    """

    @classmethod
    def search_space(cls, recorded: Sequence[Any] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"conformal": [{"alpha": share, "coverage": "conditional"} for share in SHARES]}

    def __init__(
        self,
        alpha: float = 0.4,
        coverage: Coverage = "marginal",
        calibration: str | Path | ConformalCalibration | None = None,
        *,
        ties: Ties = "random",
        pool: Pool = "per_turn",
        any_chunk_len: bool = False,
        adaptive_step: float | None = None,
    ) -> None:
        self._given = {
            "alpha": alpha,
            "coverage": coverage,
            "calibration": calibration,
            "ties": ties,
            "pool": pool,
            "any_chunk_len": any_chunk_len,
            "adaptive_step": adaptive_step,
        }
        self.alpha = require.number("alpha", alpha, least=0, most=1)
        self.coverage = require.one_of("coverage", coverage, get_args(Coverage))
        self.is_joint = self.coverage == "conditional"
        self.ties = require.one_of("ties", ties, get_args(Ties))
        self.pool = require.one_of("pool", pool, get_args(Pool))
        self.any_chunk_len = any_chunk_len
        self._is_online = coverage == "marginal" and calibration == ONLINE
        if coverage == "marginal" and calibration is None:
            raise ConfigError(
                "is None, but marginal coverage ranks scores among a calibration's: make one with `scaffolding-ext "
                "calibrate conformal`, or choose coverage 'conditional'",
                "calibration",
            )
        if self._is_online:
            calibration = None
        if isinstance(calibration, (str, Path)):
            with require.under("calibration"):
                calibration = ConformalCalibration.load(calibration)
        self.calibration = calibration if coverage == "marginal" else None
        self._pools = [] if self.calibration is None else self.calibration.pools(alpha)
        self.calibration_cost = None if self.calibration is None else self.calibration.level(alpha).cost
        self._own = _NO_SCORES  # of a request with conditional coverage
        self._adaptive: AdaptiveLevel | None = None
        if adaptive_step is not None:
            step_len = require.number("adaptive_step", adaptive_step, above=0)
            self._adaptive = AdaptiveLevel(require.number("alpha", alpha, above=0, below=1), step_len)

    def changed(self, **given: Any) -> ConformalRule:
        """Return the rule with some arguments replaced; the same rule if none is given."""
        return type(self)(**self._given | given) if given else self

    def check(self, setting: DraftTargetSetting) -> None:
        if self.calibration is not None:
            self.calibration.check(setting, any_chunk_len=self.any_chunk_len)

    def coverage_warning(self, max_turns: int, prompt: str | None = None) -> str | None:
        if self.coverage == "conditional" and max_turns > 1:
            return (
                "coverage 'conditional' holds alpha on the first turn only: on later ones the target may take over "
                "far more chunks (47 % instead of 25 % on the embedded models): choose coverage 'marginal' "
                "with a calibration, or max_turns 1"
            )
        if self.calibration is None:
            return None
        if self.any_chunk_len:
            return "any_chunk_len takes scores of chunks of another length, so alpha need not hold at any turn"
        if prompt is not None and self.calibration.is_foreign(prompt):
            return "the calibration was made online, for questions other than this one"
        return self._doubt_of_turns(self.calibration, max_turns)

    def _doubt_of_turns(self, calibration: ConformalCalibration, max_turns: int) -> str | None:
        if self.pool == "first_turn" and max_turns > 1:
            return (
                "pool 'first_turn' holds alpha on the first turn only: later chunks are ranked among scores of the "
                "first turn"
            )
        num_turns = sum(bool(turn.scores) for turn in calibration.level(self.alpha).turns)
        if num_turns < max_turns:
            return (
                f"the calibration has scores of {num_turns} turns, but a chain may draft {max_turns} chunks: after "
                f"these turns a coin of probability {self.alpha:g} decides. Calibrate longer chains, or set pool "
                "'first_turn'"
            )
        return None

    def for_request(self) -> ConformalRule:
        if self._is_online:
            raise ConfigError(
                "is 'online', so all questions' first chunks are scored before the first is answered: `eval` does so; "
                "elsewhere give a file of `scaffolding-ext calibrate conformal`",
                "calibration",
            )
        return self if self.coverage == "marginal" else copy.copy(self)

    def decide(self, chains: Sequence[DraftTargetChain], rngs: Sequence[np.random.Generator]) -> ControllerGenerator:
        yield from ()
        scores = [chain.score for chain in chains if chain.score is not None]
        if self.is_joint and chains[0].turn == 0:
            self._own = ScorePool(scores)
            p_values = leave_one_out_p_values(scores, self.ties, rngs[0]).tolist()
            return [self._decision(p_value, len(scores)) for p_value in p_values]
        pools = [self._pool(chain.turn) for chain in chains]
        ranked = zip(pools, scores, rngs, strict=True)
        return [self._decision(pool.p_value(score, self.ties, rng), len(pool)) for pool, score, rng in ranked]

    def figures(self) -> dict[str, Any]:
        return {} if self._adaptive is None else {"rate": self._adaptive.rate, "regret": self._adaptive.regret()}

    def _pool(self, turn: int) -> ScorePool:
        if self.calibration is None:
            return self._own
        turn = 0 if self.pool == "first_turn" else turn
        return self._pools[turn] if turn < len(self._pools) else _NO_SCORES

    def _decision(self, p_value: float, num_calibration: int) -> Decision:
        level = self.alpha if self._adaptive is None else self._adaptive.level
        taken_over = p_value <= level if self._adaptive is None else self._adaptive.decide(p_value)
        figures = {"p_value": p_value, "alpha": level, "num_calibration": num_calibration}
        return Decision(taken_over, figures, priority=p_value)


def rule_from(
    rule: str | TakeOverRule | None,
    *,
    alpha: float | None,
    coverage: Coverage | None,
    calibration: str | Path | ConformalCalibration | None,
) -> TakeOverRule:
    """Build the rule; the conformal rule's arguments are refused with another rule."""
    own: dict[str, Any] = {"alpha": alpha, "coverage": coverage, "calibration": calibration}
    given = {name: value for name, value in own.items() if value is not None}
    if rule is None:
        return ConformalRule(**given)
    if isinstance(rule, ConformalRule):
        return rule.changed(**given)
    require.alone("rule", rule, **own)
    found: TakeOverRule = take_over_rules.build(rule, "rule")
    return found
