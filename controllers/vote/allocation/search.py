"""The cheapest rule that loses no more accuracy than allowed, among every setting of every family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from scaffolding_ext.controllers.vote.allocation.base import AllocationRule
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.controllers.vote.allocation.replay import Outcome


def most_samples(votes: Sequence[LabelledVote]) -> int:
    """Samples of the largest vote."""
    return max(len(each.classes) for each in votes)


def knobs_of(votes: Sequence[LabelledVote]) -> list[int]:
    """Numbers of samples after which a rule may look at these votes."""
    most = most_samples(votes)
    return [knob for knob in (2, 3, 4, 5, 6, 8) if knob < most]


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
