"""Samples of a vote as they come: in rounds, or in flight, where a sample that is over makes room for the next.

The order in which samples in flight count decides if a vote repeats:

- By *tokens*, a sample counts once each other running sample surely ends later, on a clock of tokens: a sample begins
  when its predecessor counts, and ends as many tokens later as it has. Workers must stream.
- By *index*, samples count in the order of their numbers, as in one-by-one sampling.
- By *arrival*, samples count as they end, which depends on how busy the workers are.

At the request's deadline a round and a flight are cut: the samples that have ended count, at least one of them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from scaffolding_ext.controllers.deadline import is_over
from scaffolding_ext.controllers.run import Run
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, SequentialRule
from scaffolding_ext.controllers.vote.sample import Sample
from scaffolding_ext.controllers.vote.sampler import Sampler
from scaffolding_ext.protocol import ControllerGenerator, StreamGenerationTask
from scaffolding_ext.protocol.tasks import RollingBranches
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.request.parts import reached
from scaffolding_ext.request.program import DEADLINE, current_program, seconds_left

LATE = DEADLINE  # exit reason of a vote that had no time for the samples that its rule still wanted
Order: TypeAlias = Literal["tokens", "index", "arrival"]
MOST_AHEAD = 2  # by index: begun samples that do not count yet, as a multiple of those that run at once


@dataclass(eq=False)
class _Begun:
    """A sample that runs, or has ended and does not count yet.

    Attributes:
        began_at: Time of the flight's clock, in tokens.
        ended_in: Number of the wait in which the sample ended; None before that, and if it failed.
    """

    sample: Sample
    began_at: int
    ended_in: int | None = None

    def when(self) -> tuple[int, int]:
        """Return the time of its end in tokens, or a lower bound, and its number to break ties."""
        return self.began_at + self.sample.position, self.sample.index

    def arrived(self) -> tuple[int, int, int]:
        """Return the order of arrival; of samples that ended in one wait, the shortest comes first."""
        return self.ended_in or 0, self.sample.num_decoded, self.sample.index


class Draws:
    """The draws of one vote.

    Args:
        rule: The draws wait for as many samples as it needs to decide again.
        in_flight: Samples that run at once; None draws rounds, as does a host that waits for all branches of a step.

    Attributes:
        num_rounds: Times that samples were drawn.
    """

    def __init__(
        self, run: Run, sampler: Sampler, rule: AllocationRule | None, in_flight: int | None, order: Order
    ) -> None:
        program = current_program()
        self._can_roll = program is not None and program.can_roll
        if sampler.max_samples == 1:
            in_flight = None
        if in_flight is not None and not self._can_roll:
            run.fallback("in_flight", to="rounds", reason="this host waits for all branches of a step")
            in_flight = None
        can_stream = run.can_serve(WorkerTag.GENERATION, StreamGenerationTask)
        if in_flight is not None and order == "tokens" and not can_stream:
            run.fallback("order", asked=order, given="index", reason="the worker cannot stream")
            order = "index"
        self._sampler, self._in_flight, self._order = sampler, in_flight, order
        self._is_asked_at_each = in_flight is not None and isinstance(rule, SequentialRule)
        self._step = RollingBranches()
        self._begun: list[_Begun] = []
        self._awaited: _Begun | None = None  # runs, and may end before one that has ended
        self.num_rounds = 0
        self._num_waits = self._num_counted = self._longest = 0
        self._now = 0  # in tokens

    @property
    def are_over(self) -> bool:
        """True if no sample is left, or the deadline has passed and a sample counts, however late it was."""
        return (self._num_counted > 0 and is_over()) or not (self._sampler.num_left or self._begun)

    @property
    def running_tokens(self) -> int:
        """Tokens that running samples have written, on the clock of tokens.

        In other orders it is not known when a sample began: each counts as the longest that has ended.
        """
        if self._order == "tokens" or self._in_flight is None:
            return sum(self._now - each.began_at for each in self._begun)
        num_left = self._sampler.max_samples - self._sampler.num_failed - self._num_counted
        return self._longest * min(self._in_flight, num_left)

    def next(self, num_more: int) -> ControllerGenerator:
        """Draw `num_more` samples, or as many of them as the rule waits for, and return those that count.

        They are fewer at the deadline, and if some fail that may.

        Raises:
            TaskError: A sample has failed, and no more may fail.
        """
        self.num_rounds += 1
        if self._in_flight is not None:
            return (yield from self._wait_for(1 if self._is_asked_at_each else num_more, self._order))
        if not self._can_roll or (seconds_left() is None and not self._sampler.allow_failed):
            new = self._sampler.next(num_more)
            yield self._sampler.branches(new)
            self._num_counted += len(new)
            return new
        self._begin(num_more, "index")
        new = yield from self._wait_for(num_more, "index")
        yield from self.close()
        return new

    def close(self) -> ControllerGenerator:
        """Cancel the samples that still run, and discard those that do not count; return how many tokens these had."""
        left, self._begun = self._begun, []
        if not left:
            return 0
        self._step.is_closing, self._step.sub_gens, self._step.branch_paths = True, [], []
        yield self._step
        self._step = RollingBranches()
        return self._sampler.discard(each.sample for each in left)

    def _wait_for(self, num: int, order: Order) -> ControllerGenerator:
        new: list[Sample] = []
        while len(new) < num:
            if self._in_flight is not None:
                self._begin(self._room(self._in_flight), order)
            first = self._first_over(order)
            if first is None or first.ended_in is None:
                is_late = is_over()
                ended = [each for each in self._begun if each.ended_in is not None]
                if not self._begun or (is_late and (self._num_counted or ended)):  # a late failure costs no answer
                    return new + [sample for each in ended for sample in self._count(each, order)]
            if first is not None:
                new += self._count(first, order)
                continue
            self._step.seconds = None if is_late else seconds_left()  # one sample counts, however late
            self._num_waits += 1
            yield self._step
        return new

    def _begin(self, num_samples: int, order: Order) -> None:
        new = self._sampler.next(num_samples) if num_samples > 0 else []
        begun = [_Begun(sample, self._now) for sample in new]
        for each in begun:
            each.sample.may_be_dropped = True
            each.sample.moved = functools.partial(self._moved, each) if order == "tokens" else None
        step = self._sampler.branches(new)
        self._step.sub_gens += map(self._followed, begun, step.sub_gens)
        self._step.branch_paths += map(tuple, step.branch_paths or ())
        self._begun += begun

    def _followed(self, begun: _Begun, work: Iterable[Any]) -> ControllerGenerator:
        yield from work
        begun.ended_in = self._num_waits

    def _moved(self, begun: _Begun) -> None:
        if begun is self._awaited and self._first_over("tokens") is not None:
            self._step.wake()

    def _room(self, in_flight: int) -> int:
        if self._order != "index":
            return in_flight - len(self._begun)
        num_over = sum(map(self._is_over, self._begun))
        return min(in_flight + num_over, MOST_AHEAD * in_flight) - len(self._begun)

    def _is_over(self, begun: _Begun) -> bool:
        return begun.ended_in is not None or begun.sample.index in self._step.failures

    def _first_over(self, order: Order) -> _Begun | None:
        """Return the sample that counts next; None if that is not known yet."""
        over = filter(self._is_over, self._begun)
        if order == "arrival":
            return min(over, key=_Begun.arrived, default=None)
        first = min(over, key=_Begun.when, default=None)
        if first is None:
            return None
        when = first.when()
        self._awaited = next((each for each in self._begun if each.when() < when and not self._is_over(each)), None)
        return first if self._awaited is None else None

    def _count(self, begun: _Begun, order: Order) -> list[Sample]:
        """Take a sample that is over out of the flight; return it, or nothing if it has failed."""
        self._begun.remove(begun)
        if order == "tokens":
            self._now = max(self._now, begun.when()[0])
            reached(self._now)
        failure = self._step.failures.get(begun.sample.index)
        if failure is not None:
            self._sampler.fail(begun.sample, failure)
            return []
        begun.sample.count()
        self._num_counted += 1
        self._longest = max(self._longest, begun.sample.num_decoded)
        return [begun.sample]
