"""Router by question: the first chunks show which questions are hard, and the target answers only these."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.draft_target.chain import Decision, DraftTargetChain
from scaffolding_ext.controllers.draft_target.take_over import SHARES, TakeOverRule
from scaffolding_ext.protocol import ControllerGenerator


class Router(TakeOverRule):
    """Sends a question to the target if its first drafted chunks are strange to the target, otherwise to the draft.

    Chunk scores identify hard questions, not bad chains (docs/results/conformal_replay.md). They are therefore
    read once: the mean score of the first chunks decides for all chains, and no later chunk is scored.

    Args:
        share: Share of the questions that go to the target, in [0, 1]. A question is ranked among earlier ones, so the
            order of requests matters.
        threshold: Mean score above which a question goes to the target, in the unit of the score; replaces `share`.
        min_questions: Earlier questions that a rank needs; until then a coin of probability `share` decides.
        most_questions: Number of questions remembered.

    Reference: Chen, Zaharia, Zou, "FrugalGPT", arXiv 2305.05176, a cascade by a score.

    Deviation: The score is the target's likelihood of a beginning, not a trained judge's of an answer.
    """

    is_joint = True

    @classmethod
    def search_space(cls, recorded: Sequence[Any] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"router": [{"share": share} for share in SHARES]}

    def __init__(
        self, share: float = 0.4, threshold: float | None = None, min_questions: int = 8, most_questions: int = 200
    ) -> None:
        self.share = require.number("share", share, least=0, most=1)
        self.threshold = None if threshold is None else require.number("threshold", threshold)
        self.min_questions = require.whole("min_questions", min_questions)
        self._means: deque[float] = deque(
            maxlen=require.whole("most_questions", most_questions, least=self.min_questions)
        )
        self._mean: float | None = None  # of a request

    def for_request(self) -> Router:
        return copy.copy(self)

    def decide(self, chains: Sequence[DraftTargetChain], rngs: Sequence[np.random.Generator]) -> ControllerGenerator:
        yield from ()
        self._mean = float(np.mean([chain.score for chain in chains if chain.score is not None]))
        figures: dict[str, Any] = {"question_score": self._mean}
        if self.threshold is not None:
            to_target = self._mean > self.threshold
        else:
            num_calibration = len(self._means) if len(self._means) >= self.min_questions else 0
            stranger = sum(mean >= self._mean for mean in self._means) if num_calibration else 0
            rank = (stranger + rngs[0].random()) / (num_calibration + 1)
            to_target = bool(rank <= self.share)
            figures |= {"p_value": rank, "num_calibration": num_calibration}
        return [Decision(to_target, figures, is_final=True) for _ in chains]

    def observe(self, ended: Sequence[DraftTargetChain]) -> None:
        if self._mean is not None:
            self._means.append(self._mean)
