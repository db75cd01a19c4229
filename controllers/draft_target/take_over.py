"""Interface for take-over rules."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from scaffolding_ext.controllers.draft_target.calibration_file import DraftTargetSetting
from scaffolding_ext.controllers.draft_target.chain import DraftTargetChain
from scaffolding_ext.controllers.rule import DecisionRule
from scaffolding_ext.protocol import ControllerGenerator
from scaffolding_ext.protocol.meta import TokenCounts

SHARES = (0.6, 0.4, 0.25, 0.1)  # shares of take-overs to try


class TakeOverRule(DecisionRule[Sequence[DraftTargetChain]]):
    """Decides on drafted chunks, each as it comes; a joint rule decides on the first chunks of all chains together.

    `observe` receives all chains of a request that ended successfully.

    Attributes:
        scores_chunks: The target scores every chunk before its decision; otherwise `chain.score` stays None.
        is_joint: The first chunks of a request wait for each other, and are decided together.
        calibration_cost: Tokens spent on its calibration before any request; None without one, or if unknown.
    """

    scores_chunks: bool = True
    is_joint: bool = False
    calibration_cost: TokenCounts | None = None

    @property
    def inputs(self) -> frozenset[str]:
        """`"scores"` of the target, `"texts"` of chunks, or `"verdicts"` that it asks for."""
        return frozenset({"scores"} if self.scores_chunks else ())

    def check(self, setting: DraftTargetSetting) -> None:  # most rules hold for any setting
        """Refuse models, chunk lengths, a policy or a score for which the rule is invalid."""

    def coverage_warning(self, max_turns: int, prompt: str | None = None) -> str | None:
        """Return a warning saying why the rule's guarantee does not hold; None if it holds.

        Args:
            prompt: Rendered prompt of a request; None when the stack is built.
        """
        return None

    def for_request(self) -> TakeOverRule:
        """Return the rule for one request: a fresh copy if the rule keeps state of a request."""
        return self

    @abstractmethod
    def decide(self, chains: Sequence[DraftTargetChain], rngs: Sequence[np.random.Generator]) -> ControllerGenerator:
        """Decide on the waiting chunks of some chains; the host does any work that is yielded.

        Args:
            chains: All chains at the first turn of a joint rule, otherwise one. Each has drafted something.
        """

    def figures(self) -> dict[str, Any]:
        return {}
