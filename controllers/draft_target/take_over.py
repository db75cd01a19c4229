"""Who decides whether the target takes over a drafted chunk: the contract of the rules."""

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

SHARES = (0.6, 0.4, 0.25, 0.1)  # of what the target takes over, that a trial tries


class TakeOverRule(DecisionRule[Sequence[DraftTargetChain]]):
    """Decides on drafted chunks, each by itself as it comes or all chunks of a turn together.

    What has ended under it (`observe`) are all chains of its request, which have ended well.

    Attributes:
        scores_chunks: Whether the target scores every chunk before its decision; else `chain.score` stays None.
        calibration_cost: Tokens that were spent on its calibration, before any request; None where there is none, or
            nothing says how many.
    """

    scores_chunks: bool = True
    calibration_cost: TokenCounts | None = None

    @property
    def looks_at(self) -> frozenset[str]:
        """`"scores"` of the target, `"texts"` of chunks, or `"verdicts"` that it asks for."""
        return frozenset({"scores"} if self.scores_chunks else ())

    def check(self, setting: DraftTargetSetting) -> None:  # most rules hold for any setting
        """Refuse models, chunk lengths, a policy or a score for which the rule does not hold."""

    def doubt(self, max_turns: int, prompt: str | None = None) -> str | None:
        """Why the rule's promise does not hold, as the text of a warning; None where it holds.

        Args:
            prompt: Prompt of a request, as the models read it; None when the stack is built, before any request.
        """
        return None

    def for_request(self) -> TakeOverRule:
        """The rule for one request; a rule that keeps something of a request gives a fresh copy."""
        return self

    def in_step(self, turn: int) -> bool:
        """Whether the chunks of a turn, from 0, wait for each other and are decided together.

        A rule that lets the chains go at one turn lets them go at all later ones.
        """
        return False

    @abstractmethod
    def decide(self, chains: Sequence[DraftTargetChain], rngs: Sequence[np.random.Generator]) -> ControllerGenerator:
        """Decide on the chunks that wait in some chains. The host does whatever work the method yields.

        Args:
            chains: All chains of a turn in step, else one. Each has written something.
        """

    def figures(self) -> dict[str, Any]:
        """Figures of all decisions so far, for the trace."""
        return {}
