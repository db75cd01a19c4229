"""Count the samples of one vote: round by round, or, of a vote that rolls, one by one."""

from __future__ import annotations

import copy

from scaffolding_ext.answers.classes import AnswerClasses
from scaffolding_ext.controllers.certaindex import entropy_certaindex
from scaffolding_ext.controllers.run import Run
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, SequentialRule, Votes
from scaffolding_ext.controllers.vote.deadline import round_in_time
from scaffolding_ext.controllers.vote.flight import Flight, Order
from scaffolding_ext.controllers.vote.samples import Sample, Sampler, end_vote
from scaffolding_ext.controllers.vote.voting import elect
from scaffolding_ext.controllers.vote.weights import Weight
from scaffolding_ext.protocol import ControllerGenerator, ParallelProcess
from scaffolding_ext.request.program import current_program, record, seconds_left


class Ballot:
    """State of a vote: its samples, their answers, classes and weights, and how many more it draws.

    Args:
        rule: Decides how many more samples to draw; None draws them all.
        flight: The samples that run; None draws in rounds.

    Attributes:
        num_wanted: Samples until the rule is asked again; 0 ends the vote.
    """

    def __init__(
        self, run: Run, sampler: Sampler, rule: AllocationRule | None, weight: Weight, flight: Flight | None = None
    ) -> None:
        self.sampler = sampler
        self.answers: list[str | None] = []
        self.classes: list[int] = []
        self.weights: list[float] = []
        self._run = run
        self._rule, self._weight = rule, weight
        self._flight = flight
        self._known = AnswerClasses()
        self._counted: list[Sample] = []
        self._num_rounds = 0
        self.num_wanted = max(1, self._num_more())
        run.event("begin", controller=run.name, left=sampler.max_samples)

    def draw(self) -> ControllerGenerator:
        """Count the samples of the next round, or the next sample of the flight."""
        yield from (self._round() if self._flight is None else self._roll(self._flight))
        self._num_rounds += 1
        self._run.event(
            "allocate",
            done=len(self.classes),
            left=self.sampler.most_votes - len(self.classes) if self.num_wanted else 0,
            certaindex=0.0 if self._rule is None else entropy_certaindex(self.classes),
            classes=self.classes,
            num_more=self.num_wanted,
        )

    def close(self) -> ControllerGenerator:
        """Cancel what still runs, and elect."""
        if self._flight is not None:
            yield from self._flight.close()
        rule, most, num_failed = self._rule, self.sampler.most_votes, self.sampler.num_failed
        failed = {"num_failed": num_failed} if num_failed else {}
        if num_failed:
            self._run.sum_up(failed_samples=num_failed)
        self.sampler.look_for_copies(self._run.memory)
        if rule is not None:
            self._run.tell(rule, Votes(self.classes, most))
        end_vote(
            self._run,
            self.sampler.samples,
            self.answers,
            self.classes,
            self.weights,
            most,
            num_rounds=self._num_rounds,
            min_answers=None if rule is None else rule.min_answers,
            **failed,
        )

    def whole(self) -> ControllerGenerator | None:
        """Return work that draws the other samples and returns the full vote's answer; None if there are none."""
        rest = self.sampler.the_others()
        return None if rest is None else self._drawn_on(rest)

    def _drawn_on(self, rest: ParallelProcess) -> ControllerGenerator:
        full = copy.copy(self)
        yield rest
        yield from full._count()
        winner, first = elect(full.classes, full.weights)
        return full.answers[first] if winner >= 0 else None

    def _roll(self, flight: Flight) -> ControllerGenerator:
        """Count the next sample; a rule that can stop at any sample is asked at each."""
        before = len(self._counted)
        has_next = yield from flight.next(least=1)
        yield from self._count()
        self.num_wanted -= len(self._counted) - before
        if self.num_wanted <= 0 or not has_next or isinstance(self._rule, SequentialRule):
            self.num_wanted = self._num_needed(self._num_more())
        self._end_in_time()

    def _round(self) -> ControllerGenerator:
        num_more, left, program = self.num_wanted, seconds_left(), current_program()
        is_whole = left is None and self._num_needed(num_more) == num_more and not self.sampler.allow_failed
        if is_whole or program is None or not program.can_roll:
            yield self.sampler.start(num_more)
            yield from self._count()
        else:
            yield from self._cut_round(num_more, left)
        self.num_wanted = self._num_more()
        if left is not None and self.num_wanted:
            self.num_wanted = min(self.num_wanted, self.sampler.num_left)
            self._run.is_late = not self.num_wanted
        self._end_in_time()

    def _cut_round(self, num_more: int, left: float | None) -> ControllerGenerator:
        """Run a round that may count fewer samples: until the deadline, the first ones, or those that do not fail.

        With a deadline it may be wide; then it ends once its samples settle the vote.
        """
        sampler, times, is_wide = self.sampler, self._run.memory.sample_times, False
        if left is not None:
            own = [sample.seconds for sample in sampler.samples if sample.seconds is not None]
            num_more, is_wide = round_in_time(num_more, max(num_more, sampler.num_left), left, times, own)
            record("round_in_time", num_samples=num_more, wide=is_wide, seconds_left=round(left, 6))
        num_before, num_needed = len(sampler.samples), self._num_needed(num_more)
        order: Order = "index" if left is None and num_needed == num_more else "arrival"
        flight = Flight(sampler, order, num_more, refills=False)
        while len(sampler.samples) < num_before + num_needed and (yield from flight.next(least=1)):
            if is_wide:
                yield from self._count()
                if not self._num_more():
                    break
        discarded_tokens = yield from flight.close()
        drawn = sampler.samples[num_before:]
        times.add(sample.seconds for sample in drawn if sample.seconds is not None)
        if order == "arrival" and len(drawn) < num_more:
            record("first_to_finish", kept=[sample.index for sample in drawn], discarded_tokens=discarded_tokens)
        yield from self._count()

    def _end_in_time(self) -> None:
        left = seconds_left()
        if self.num_wanted and left is not None and left <= 0:
            self.num_wanted, self._run.is_late = 0, True

    def _count(self) -> ControllerGenerator:
        """Weigh and group the answers of new samples."""
        samples = self.sampler.samples
        new = samples[len(self._counted) :]
        self.weights = [*self.weights, *(yield from self._weight.weigh(new))]
        self.answers = [*self.answers, *(sample.answer for sample in new)]
        self.classes = yield from self._run.group(self.answers, self._known)
        self._counted = list(samples)

    def _num_needed(self, num_more: int) -> int:
        first = None if self._rule is None else self._rule.num_to_wait_for
        return num_more if first is None else min(first, num_more)

    def _num_more(self) -> int:
        most, counted = self.sampler.most_votes, self._counted
        if self._rule is None:
            return most - len(counted)
        rewards = [sample.reward for sample in counted if sample.reward is not None]
        lengths = [sample.num_decoded for sample in counted]
        weights = None if self._weight.is_uniform else self.weights
        return self._rule.num_more(Votes(self.classes, most, rewards or None, lengths, weights, self._weight.most))
