"""Count the samples of one vote, round by round."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

from scaffolding_ext.answers.classes import AnswerClasses
from scaffolding_ext.controllers.certaindex import entropy_certaindex
from scaffolding_ext.controllers.run import Run
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.controllers.vote.deadline import draw_in_time, samples_in_time
from scaffolding_ext.controllers.vote.samples import Sample, Sampler, end_vote
from scaffolding_ext.controllers.vote.voting import elect
from scaffolding_ext.controllers.vote.weights import UniformWeight, Weight
from scaffolding_ext.protocol import ControllerGenerator


class Ballot:
    """State of a vote: its samples, their answers, classes and weights, and the size of the next round.

    Args:
        rule: Decides how many more samples to draw; None draws them all in one round.

    Attributes:
        num_wanted: Samples of the next round; 0 ends the vote.
    """

    def __init__(self, run: Run, sampler: Sampler, rule: AllocationRule | None, weight: Weight) -> None:
        self.sampler = sampler
        self.answers: list[str | None] = []
        self.classes: list[int] = []
        self.weights: list[float] = []
        self._run = run
        self._rule, self._weight = rule, weight
        self._known = AnswerClasses()
        self._counted: list[Sample] = []
        self._num_rounds = 0
        self.num_wanted = max(1, self._num_more())
        run.event("begin", controller=run.name, left=sampler.max_samples)

    def draw(self) -> ControllerGenerator:
        run, rule, sampler = self._run, self._rule, self.sampler
        num_needed = None if rule is None else rule.num_to_wait_for
        times = run.memory.sample_times
        yield from draw_in_time(sampler, self.num_wanted, times, num_needed, self._settling())
        sampler.drop_failed()
        yield from self._count(sampler.samples)
        self._num_rounds += 1
        self.num_wanted, run.is_late = samples_in_time(self._num_more(), sampler)
        run.event(
            "allocate",
            done=len(self.classes),
            left=sampler.most_votes - len(self.classes) if self.num_wanted else 0,
            certaindex=0.0 if rule is None else entropy_certaindex(self.classes),
            classes=self.classes,
            num_more=self.num_wanted,
        )

    def close(self) -> None:
        rule, most, num_failed = self._rule, self.sampler.most_votes, self.sampler.num_failed
        failed = {"num_failed": num_failed} if num_failed else {}
        if num_failed:
            self._run.sum_up(failed_samples=num_failed)
        self.sampler.look_for_copies(self._run.memory)
        end_vote(
            self._run,
            self.sampler.samples,
            self.answers,
            self.classes,
            self.weights,
            most,
            num_rounds=self._num_rounds,
            min_answers=None if rule is None else rule.min_answers,
            drift=None if rule is None else rule.observe(Votes(self.classes, most)),
            **failed,
        )

    def whole(self) -> ControllerGenerator | None:
        """Return work that draws the skipped samples and returns the full vote's answer; None if none was skipped."""
        num_left = self.sampler.most_votes - len(self.classes)
        return self._drawn_on(num_left) if num_left else None

    def _drawn_on(self, num_left: int) -> ControllerGenerator:
        full = copy.copy(self)
        yield self.sampler.start(num_left)
        self.sampler.drop_failed()
        yield from full._count(self.sampler.samples)
        winner, first = elect(full.classes, full.weights)
        return full.answers[first] if winner >= 0 else None

    def _count(self, samples: Sequence[Sample]) -> ControllerGenerator:
        new = samples[len(self._counted) :]
        self.weights = [*self.weights, *(yield from self._weight.weigh(new))]
        self.answers = [*self.answers, *(sample.answer for sample in new)]
        self.classes = yield from self._run.group(self.answers, self._known)
        self._counted = list(samples)

    def _num_more(self) -> int:
        most, counted = self.sampler.most_votes, self._counted
        if self._rule is None:
            return most - len(counted)
        rewards = [sample.reward for sample in counted if sample.reward is not None]
        lengths = [sample.num_decoded for sample in counted]
        weights = None if self._weight.is_uniform else self.weights
        return self._rule.num_more(Votes(self.classes, most, rewards or None, lengths, weights, self._weight.most))

    def _settling(self) -> Callable[[Sequence[Sample]], ControllerGenerator] | None:
        """Return work that tests whether further samples settle the vote; None if the weights cannot be known early."""
        if self._rule is None or not isinstance(self._weight, UniformWeight):
            return None
        before = self._counted

        def settles(ended: Sequence[Sample]) -> ControllerGenerator:
            trial = copy.copy(self)
            trial._known = known
            yield from trial._count([*before, *ended])
            return not trial._num_more()

        known = AnswerClasses()  # a fresh one, because this work may be stopped within a comparison
        return settles
