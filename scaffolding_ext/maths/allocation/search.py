"""The cheapest rule that loses no more accuracy than allowed, among every setting of every family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from scaffolding_ext.maths.allocation.adaptive_consistency import BetaConsistency, DirichletConsistency
from scaffolding_ext.maths.allocation.base import AllocationRule
from scaffolding_ext.maths.allocation.baselines import Even, LengthThreshold
from scaffolding_ext.maths.allocation.curtailment import Curtailment
from scaffolding_ext.maths.allocation.doubling import AgreementDoubling
from scaffolding_ext.maths.allocation.early_stopping import EarlyStoppingWindow
from scaffolding_ext.maths.allocation.leader_change import LeaderChange, fit_concentration
from scaffolding_ext.maths.allocation.replay import LabelledVote, Outcome
from scaffolding_ext.maths.allocation.threshold import StaticThreshold, ThresholdEvery

CONFIDENCES = (0.7, 0.8, 0.85, 0.9, 0.95, 0.98)
CONCENTRATIONS = (2.0, 1.0, 0.5)
MISSES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25)
THRESHOLDS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def families(votes: Sequence[LabelledVote]) -> dict[str, list[AllocationRule]]:
    """Every family's settings, from the most careful to the boldest as far as that is known.

    Args:
        votes: The labelled votes; their sizes and lengths bound the settings.
    """
    most = max(len(each.classes) for each in votes)
    knobs = [knob for knob in (2, 3, 4, 5, 6, 8) if knob < most]
    lengths = np.concatenate([np.asarray(each.lengths, dtype=float) for each in votes])
    cuts = sorted({float(cut) for cut in np.quantile(lengths, (0.1, 0.25, 0.5, 0.75, 0.9)) if cut > 0})
    fitted = round(fit_concentration([each.classes for each in votes]), 2)
    weights = sorted({*CONCENTRATIONS, fitted}, reverse=True)
    return {
        "curtailment": [Curtailment(leap=1.0)],
        "even": [Even(num_samples=number) for number in range(most, 0, -1)],
        "length": [LengthThreshold(max_mean_length=cut, knob=knob) for knob in knobs for cut in cuts],
        "early stopping": [EarlyStoppingWindow(window=window) for window in range(min(8, most), 1, -1)],
        "certaindex, one knob": [
            StaticThreshold(threshold=value, knob=knob) for knob in knobs for value in reversed(THRESHOLDS)
        ],
        "certaindex, every step": [
            ThresholdEvery(threshold=value, step=step) for step in knobs for value in reversed(THRESHOLDS)
        ],
        "adaptive, beta": [BetaConsistency(confidence=value) for value in reversed(CONFIDENCES)],
        "adaptive, dirichlet": [DirichletConsistency(confidence=value) for value in reversed(CONFIDENCES)],
        "its_hub doubling": [AgreementDoubling(agreement=value) for value in (1.0, 0.9, 0.8, 0.75, 0.6, 0.51)],
        "adaptive, beta, in leaps, gives up": [
            BetaConsistency(confidence=value, leap=1.0, give_up=True) for value in reversed(CONFIDENCES)
        ],
        "leader change": [LeaderChange(miss=miss, concentration=weight) for weight in weights for miss in MISSES],
        "leader change, gives up": [
            LeaderChange(miss=miss, concentration=weight, give_up=True) for weight in weights for miss in MISSES
        ],
    }


def cheapest(
    outcomes: Mapping[AllocationRule, Outcome],
    full_correct: np.typing.NDArray[np.float64],
    max_loss: float,
    questions: Sequence[int] | None = None,
) -> AllocationRule:
    """The rule with the fewest tokens, and then rounds, among those that lose at most `max_loss`.

    Args:
        outcomes: Each rule's, on the same orders.
        full_correct: Share of right full votes of each question, shape [num_questions].
        max_loss: Largest mean loss of accuracy against the full vote, as a share.
        questions: Indices of the questions to choose on; None takes all.

    Returns:
        The rule; where none is within the loss, the one that loses least.

    Raises:
        ValueError: There is no rule.
    """
    if not outcomes:
        raise ValueError("there is no rule to choose from; give at least one outcome")
    chosen = np.arange(len(full_correct)) if questions is None else np.asarray(questions)

    def cost(rule: AllocationRule) -> tuple[float, float, float]:
        outcome = outcomes[rule]
        loss = float(np.mean(full_correct[chosen] - outcome.correct[chosen]))
        excess = max(0.0, loss - max_loss - 1e-12)
        return excess, float(outcome.tokens[chosen].sum()), float(outcome.num_rounds[chosen].sum())

    return min(outcomes, key=cost)
