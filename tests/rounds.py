"""Replay of samples to an allocation rule, round by round, for tests of rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes


class RoundsDrawn(NamedTuple):
    """Result of a replay.

    Attributes:
        num_samples: Samples drawn.
        num_rounds: Rounds of drawing; samples of one round run concurrently.
        critical_length: Tokens of the longest sample of each round, summed; 0 if lengths are unknown.
    """

    num_samples: int
    num_rounds: int
    critical_length: int


def replay(
    rule: AllocationRule,
    classes: Sequence[int],
    lengths: Sequence[int] | None = None,
    rewards: Sequence[float] | None = None,
) -> RoundsDrawn:
    """Feed the samples to the rule in order until it stops or none is left.

    Args:
        rule: The rule.
        classes: Class of each sample's answer, shape [num_samples]; -1 without an answer.
        lengths: Tokens of each sample.
        rewards: Reward of each sample, in [0, 1].
    """
    num_drawn = num_rounds = critical_length = 0
    while num_drawn < len(classes):
        seen = Votes(
            classes[:num_drawn],
            len(classes),
            None if rewards is None else rewards[:num_drawn],
            None if lengths is None else lengths[:num_drawn],
        )
        num_more = rule.num_more(seen)
        if not num_more:
            break
        num_rounds += 1
        if lengths is not None:
            critical_length += max(lengths[num_drawn : num_drawn + num_more])
        num_drawn += num_more
    return RoundsDrawn(num_drawn, num_rounds, critical_length)
