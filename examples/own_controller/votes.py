"""Five votes of one's own: each overrides one step of `MajorityVoteController`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scaffolding_ext import MajorityVoteController
from scaffolding_ext.controllers.reward import score
from scaffolding_ext.controllers.run import Run
from scaffolding_ext.controllers.vote.allocation.base import Votes, standing_of
from scaffolding_ext.controllers.vote.sample import Sample
from scaffolding_ext.controllers.vote.voting import Election
from scaffolding_ext.protocol import Controller, ControllerGenerator


class CheckedVote(MajorityVoteController):
    """Lets a verifier, a reward controller, decide between the two leaders if at most one vote is between them."""

    def __init__(self, *args: Any, verifier: Controller, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.verifier = verifier

    def elect(self, run: Run, votes: Votes) -> ControllerGenerator:
        standing = standing_of(votes)
        if not standing.rivals or standing.lead - standing.runner_up > 1:
            return (yield from super().elect(run, votes))
        classes = list(votes.classes)
        leaders = sorted(set(classes) - {-1}, key=classes.count, reverse=True)[:2]
        firsts = [classes.index(each) for each in leaders]
        scores = yield from score(self.verifier, [votes.samples[first].task for first in firsts])
        best = scores.index(max(scores))
        return Election(leaders[best], firsts[best])


class HotterVote(MajorityVoteController):
    """Raises the temperature from sample to sample, up to 1.2."""

    def vary(self, sample: Sample) -> None:
        sample.task.temperature = min(0.6 + 0.1 * sample.index, 1.2)


class PairwiseVote(MajorityVoteController):
    """Asks the rule at every second sample."""

    def num_more(self, votes: Votes) -> int:
        return min(2, votes.num_remaining) if super().num_more(votes) else 0


class WordyVote(MajorityVoteController):
    """Counts no answer of one word."""

    def count(self, run: Run, votes: Votes, new: Any) -> ControllerGenerator:
        counted = yield from super().count(run, votes, new)
        has_vote = [len((sample.answer or "").split()) > 1 for sample in counted.samples]
        classes = [kind if counts else -1 for kind, counts in zip(counted.classes, has_vote, strict=True)]
        return replace(counted, classes=classes)


class LastVote(MajorityVoteController):
    """Gives a tie to the answer that was said last."""

    def elect(self, run: Run, votes: Votes) -> ControllerGenerator:
        backwards = yield from super().elect(run, replace(votes, classes=list(votes.classes)[::-1]))
        classes = list(votes.classes)
        return Election(backwards.winner, classes.index(backwards.winner) if backwards.winner >= 0 else 0)
