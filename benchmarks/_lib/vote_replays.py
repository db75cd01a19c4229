"""Replay rules on samples that were drawn before, and choose the cheapest that loses no more accuracy than allowed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.controllers.vote.voting import vote
from scaffolding_ext.evaluation.recordings.read import read_recording
from scaffolding_ext.evaluation.trial.space import labelled_votes

Floats = npt.NDArray[np.float64]


class Replay(NamedTuple):
    """What a rule did.

    Attributes:
        num_rounds: Times that it drew; samples of one round run at once.
        critical_length: Tokens of the longest sample of each round, summed: the time of the vote in decoding steps.
            0 where no lengths are known.
    """

    num_samples: int
    num_rounds: int
    critical_length: int


def replay(
    rule: AllocationRule,
    classes: Sequence[int],
    lengths: Sequence[int] | None = None,
    rewards: Sequence[float] | None = None,
) -> Replay:
    """Give the rule the samples in their order until it stops or no sample is left.

    Args:
        classes: Class of each sample's answer, shape [num_samples]; -1 where there is none.
        lengths: Tokens of each sample.
    """
    num_drawn = num_rounds = critical_length = 0
    while True:
        num_more = rule.num_more(_first(num_drawn, classes, lengths, rewards))
        if not num_more:
            return Replay(num_drawn, num_rounds, critical_length)
        num_rounds += 1
        if lengths is not None:
            critical_length += max(lengths[num_drawn : num_drawn + num_more])
        num_drawn += num_more


def tokens_at_once(num_samples: int, lengths: Sequence[int]) -> int:
    """Tokens decoded where all samples start together, and the others are stopped once the first ones have ended.

    Args:
        num_samples: Samples that the rule needed, the first in the order of starting.
        lengths: Tokens of each sample, had it run to its end.
    """
    last = max(lengths[:num_samples])
    return sum(min(length, last) for length in lengths)


@dataclass(frozen=True)
class Outcome:
    """A rule on labelled votes: each figure a mean over a question's orders, shape [num_questions].

    Attributes:
        correct: Share of right votes.
        tokens: Tokens decoded in rounds.
        tokens_at_once: Tokens decoded where all start together and the rest is stopped.
        critical_length: Tokens on the critical path, in rounds.
        changed: Share of votes whose winner is not that of all samples.
        stopped: Share of votes that stopped before their last sample.
        sizes: `num_samples` of every order, shape [num_questions, num_orders].
    """

    correct: Floats
    num_samples: Floats
    num_rounds: Floats
    tokens: Floats
    tokens_at_once: Floats
    critical_length: Floats
    changed: Floats
    stopped: Floats
    sizes: npt.NDArray[np.int64]


def read_votes(path: str | os.PathLike[str]) -> list[LabelledVote]:
    """The samples of a log as one vote a question; errors are those of `read_recording`."""
    return labelled_votes(read_recording([path]))


def shuffled(votes: Sequence[LabelledVote], num_orders: int, rng: np.random.Generator) -> list[list[LabelledVote]]:
    """Each vote in `num_orders` random orders. Compare rules on the same orders."""
    return [[each.reordered(rng.permutation(len(each.classes)).tolist()) for _ in range(num_orders)] for each in votes]


def play(rule: AllocationRule, orders: Sequence[Sequence[LabelledVote]]) -> Outcome:
    """Play a rule on every order of every question.

    Args:
        orders: As `shuffled` gives them: equally many orders of each question.
    """
    rows, sizes = [], []
    for question in orders:
        figures = []
        for each in question:
            num_samples, num_rounds, critical_length = replay(rule, each.classes, each.lengths, each.rewards)
            changed = vote(each.classes[:num_samples]) != vote(each.classes)
            tokens = sum(each.lengths[:num_samples]), tokens_at_once(num_samples, each.lengths)
            stopped = num_samples < len(each.classes)
            drawn = num_samples, num_rounds, *tokens, critical_length, changed, stopped
            figures.append((each.is_right(num_samples), *drawn))
        rows.append(np.mean(np.array(figures, dtype=float), axis=0))
        sizes.append([figure[1] for figure in figures])
    names = [field.name for field in dataclasses.fields(Outcome)]
    return Outcome(**dict(zip(names, (*np.array(rows).T, np.array(sizes)), strict=True)))


def cheapest(
    outcomes: Mapping[AllocationRule, Outcome],
    full_correct: Floats,
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


def _first(
    num_drawn: int, classes: Sequence[int], lengths: Sequence[int] | None, rewards: Sequence[float] | None
) -> Votes:
    return Votes(
        classes[:num_drawn],
        len(classes),
        None if rewards is None else rewards[:num_drawn],
        None if lengths is None else lengths[:num_drawn],
    )
