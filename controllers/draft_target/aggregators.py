"""What the vote of a chain weighs that two models wrote."""

from __future__ import annotations

from collections.abc import Callable

from scaffolding_ext import require
from scaffolding_ext.controllers.draft_target.chain import DraftTargetChain
from scaffolding_ext.protocol.task_results import mean_token_probability

Aggregator = Callable[[DraftTargetChain], float]


def uniform(chain: DraftTargetChain) -> float:
    """Every vote weighs the same."""
    return 1.0


def target_likelihood(chain: DraftTargetChain) -> float:
    """The geometric mean, over its drafted chunks, of what the target gives their tokens; 1 without such a chunk.

    Chunks count alike, whatever their length; those that were taken over do not count.
    """
    scores = chain.accepted_scores
    return mean_token_probability([-score for score in scores]) if scores else 1.0


_NAMED: dict[str, Aggregator] = {"uniform": uniform, "target_likelihood": target_likelihood}


def aggregator_from(aggregator: str | Aggregator) -> Aggregator:
    """A weight from its name, or the function that it is.

    Raises:
        ConfigError: No weight has that name, or it cannot be called.
    """
    if callable(aggregator):
        return aggregator
    return _NAMED[require.one_of("aggregator", aggregator, _NAMED, instead="a function")]
