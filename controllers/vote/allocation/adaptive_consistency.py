"""Adaptive-Consistency: stop when the leader is probably the likeliest answer, regardless of the remaining samples.

Reference: Aggarwal et al., "Let's Sample Step by Step: Adaptive-Consistency for Efficient Reasoning and Coding with
    LLMs", EMNLP 2023, arXiv 2305.11860.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.special import betainc

from scaffolding_ext import require
from scaffolding_ext.controllers.vote.allocation.base import SequentialRule, Standing
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote

CONFIDENCES = (0.95, 0.9, 0.85, 0.8, 0.7)  # tried by `tune`


def beta_probability(lead: float, runner_up: float) -> float:
    """P(the leader is likelier than the runner-up), given only their votes: 1 - I_{1/2}(lead + 1, runner_up + 1)."""
    return 1.0 - float(betainc(lead + 1, runner_up + 1, 0.5))


@dataclass(frozen=True, kw_only=True)
class BetaConsistency(SequentialRule):
    """The paper's default: leader against runner-up under a uniform prior.

    Args:
        confidence: Probability at which to stop, in (0.5, 1).
        min_samples: Samples drawn at any confidence, at least 1.

    Deviation: The paper's code integrates numerically; this is the closed form.
    """

    stops_when = "the leader is the likeliest answer ({0.confidence:.0%} sure)"
    confidence: float = 0.95
    min_samples: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require.number("confidence", self.confidence, above=0.5, below=1)
        require.whole("min_samples", self.min_samples)

    @classmethod
    def search_space(cls, recorded: Sequence[LabelledVote] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        leaps = {"leap": 1.0, "give_up": True}
        return {
            "Adaptive-Consistency": [{"confidence": value} for value in CONFIDENCES],
            "Adaptive-Consistency in leaps": [{"confidence": value, **leaps} for value in CONFIDENCES],
        }

    def is_certain(self, standing: Standing) -> bool:
        enough = standing.num_samples >= self.min_samples
        return enough and beta_probability(standing.lead, standing.runner_up) >= self.confidence
