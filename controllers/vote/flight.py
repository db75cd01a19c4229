"""Samples of a vote that run at once and count one by one; a sample that is over makes room for the next.

The order in which samples count decides if a vote repeats:

- By *tokens*, a sample counts once each other running sample surely ends later, on a clock of tokens: a sample begins
  when its predecessor counts, and ends as many tokens later as it has. Workers must stream.
- By *index*, samples count in the order of their numbers, as in one-by-one sampling.
- By *arrival*, samples count as they end, which depends on how busy the workers are.
"""

from __future__ import annotations

import functools
from typing import Literal, TypeAlias

from scaffolding_ext.controllers.vote.samples import Sampler, SampleRun
from scaffolding_ext.protocol import ControllerGenerator
from scaffolding_ext.protocol.tasks import RollingBranches
from scaffolding_ext.request.program import seconds_left
from scaffolding_ext.request.speculation import Speculation, reached

Order: TypeAlias = Literal["tokens", "index", "arrival"]
MOST_AHEAD = 2  # by index: begun samples that do not count yet, as a multiple of those that run at once


class Flight:
    """The running samples of a vote.

    Args:
        sampler: Starts them; those that count join its `samples`.
        num_running: Samples that run at once.
        refills: True if the next sample begins when one is over; else the flight ends with its first samples.
    """

    def __init__(self, sampler: Sampler, order: Order, num_running: int, refills: bool = True) -> None:
        self._sampler = sampler
        self._order = order
        self._num_running = num_running
        self._refills = refills
        self._step = RollingBranches()
        self._flying: list[_Flyer] = []
        self._awaited: _Flyer | None = None  # runs, and may end before one that has ended
        self._num_waits = 0
        self._now = 0  # in tokens
        self._begin(num_running)

    def next(self, least: int = 0) -> ControllerGenerator:
        """Wait for the next sample to count, or to fail; return False if none is left or the deadline is over.

        Args:
            least: Samples that must count even if the deadline is over.

        Raises:
            TaskError: The sample has failed, and no more may fail.
        """
        while True:
            if self._refills:
                self._begin(self._room())
            first = self._first()
            if first is not None:
                break
            left = seconds_left() if len(self._sampler.samples) >= least else None
            if not self._flying or (left is not None and left <= 0):
                return False
            self._step.seconds = left
            self._num_waits += 1
            yield self._step
        self._flying.remove(first)
        if self._order == "tokens":
            self._now = max(self._now, first.began_at + first.speculation.position)
            reached(self._now)
        failure = self._step.failures.get(first.index)
        if failure is not None:
            self._sampler.fail(first.run.sample, failure)
        else:
            first.speculation.count()
            self._sampler.samples.append(first.run.sample)
        return True

    def close(self) -> ControllerGenerator:
        """Cancel the samples that still run, and discard the tokens of all that do not count; return their number."""
        left, self._flying = self._flying, []
        if not left:
            return 0
        self._step.is_closing, self._step.sub_gens, self._step.branch_paths = True, [], []
        yield self._step
        return self._sampler.discard(flyer.run.sample for flyer in left)

    def _room(self) -> int:
        num_flying = len(self._flying)
        if self._order != "index":
            return self._num_running - num_flying
        num_over = sum(map(self._is_over, self._flying))
        return min(self._num_running + num_over, MOST_AHEAD * self._num_running) - num_flying

    def _begin(self, num_samples: int) -> None:
        for run in self._sampler.runs(max(0, min(num_samples, self._sampler.num_left))):
            flyer = _Flyer(run, self._now)
            moved = functools.partial(self._moved, flyer) if self._order == "tokens" else None
            run.speculation = flyer.speculation = Speculation(moved)
            self._flying.append(flyer)
            self._step.sub_gens.append(self._flown(flyer))
            self._step.branch_paths.append(run.path)

    def _flown(self, flyer: _Flyer) -> ControllerGenerator:
        yield from flyer.run
        flyer.ended_in = self._num_waits

    def _moved(self, flyer: _Flyer) -> None:
        if flyer is self._awaited and self._first() is not None:
            self._step.wake()

    def _is_over(self, flyer: _Flyer) -> bool:
        return flyer.ended_in is not None or flyer.index in self._step.failures

    def _first(self) -> _Flyer | None:
        """Return the sample that counts next; None if that is not known yet."""
        over = [flyer for flyer in self._flying if self._is_over(flyer)]
        if self._order == "arrival":
            return min(over, key=_Flyer.arrived, default=None)
        first = min(over, key=_Flyer.when, default=None)
        if first is None:
            return None
        when = first.when()
        self._awaited = next((each for each in self._flying if each.when() < when and not self._is_over(each)), None)
        return first if self._awaited is None else None


class _Flyer:
    """A sample that runs, or has ended and does not count yet.

    Attributes:
        began_at: Time of the flight's clock, in tokens.
        ended_in: Number of the flight's wait in which the sample ended; None before that, and if it failed.
    """

    __slots__ = ("began_at", "ended_in", "run", "speculation")

    def __init__(self, run: SampleRun, began_at: int) -> None:
        self.run = run
        self.began_at = began_at
        self.ended_in: int | None = None
        self.speculation = Speculation()

    @property
    def index(self) -> int:
        return self.run.sample.index

    def when(self) -> tuple[int, int]:
        """Return the time of its end in tokens, or a lower bound, and its number to break ties."""
        return self.began_at + self.speculation.position, self.index

    def arrived(self) -> tuple[int, int, int]:
        """Return the order of arrival; of samples that ended in one wait, the shortest comes first."""
        return self.ended_in or 0, self.run.sample.num_decoded, self.index
