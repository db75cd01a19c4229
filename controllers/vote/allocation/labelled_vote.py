"""Recorded samples of one question with labels, on which rules are tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from scaffolding_ext.controllers.vote.voting import elect


@dataclass(frozen=True)
class LabelledVote:
    """All samples of one question, each known to be right or wrong.

    Attributes:
        classes: Class of each sample's answer, shape [num_samples]; -1 for no answer.
        correct: True for each right sample, shape [num_samples].
    """

    id: str
    classes: Sequence[int]
    correct: Sequence[bool]
    lengths: Sequence[int]
    rewards: Sequence[float] | None = None
    logprobs: Sequence[float] | None = None

    def reordered(self, order: Sequence[int]) -> LabelledVote:
        return LabelledVote(
            self.id,
            [self.classes[index] for index in order],
            [self.correct[index] for index in order],
            [self.lengths[index] for index in order],
            None if self.rewards is None else [self.rewards[index] for index in order],
            None if self.logprobs is None else [self.logprobs[index] for index in order],
        )

    def is_right(self, num_samples: int) -> bool:
        """Return True if the vote of the first samples is right; its output is the winner's first sample."""
        winner, first = elect(self.classes[:num_samples])
        return winner != -1 and bool(self.correct[first])

    def samples_needed(self) -> int | None:
        """Return the fewest samples from which the vote is right at every larger size; None if the full vote is wrong.

        Reference: Fu et al., arXiv 2412.20993: steps to the right answer, of questions that can be solved.

        Deviation: The paper counts the steps up to the first right answer. Here the vote must stay right: one that
            turns wrong again has not converged.
        """
        counts: Counter[int] = Counter()
        order: dict[int, int] = {}  # the first sample of each class
        leader, needed = -1, None
        for index, number in enumerate(self.classes):
            if number != -1:
                order.setdefault(number, index)
                counts[number] += 1
                if leader == -1 or (counts[number], -order[number]) > (counts[leader], -order[leader]):
                    leader = number
            is_right = leader != -1 and bool(self.correct[order[leader]])
            needed = (needed or index + 1) if is_right else None
        return needed


def most_samples(votes: Sequence[LabelledVote]) -> int:
    return max((len(each.classes) for each in votes), default=0)
