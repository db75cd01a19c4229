"""Fit a vote into its deadline: small rounds while time allows, wide ones when it runs short.

Drawing round after round takes longer than drawing all samples at once. If two more rounds would be late, the next one
is wider and ends as soon as the finished samples settle the vote. At the deadline the vote answers with the samples it
has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from scaffolding_ext.controllers.sample_times import SampleTimes
from scaffolding_ext.controllers.vote.samples import Sample, Sampler
from scaffolding_ext.protocol import ControllerGenerator
from scaffolding_ext.protocol.tasks import FirstBranches
from scaffolding_ext.request.program import elapsed, record, seconds_left

Settles = Callable[[Sequence[Sample]], ControllerGenerator]

WIDENING = 2


def draw_in_time(
    sampler: Sampler,
    num_more: int,
    times: SampleTimes,
    num_needed: int | None,
    settles: Settles | None,
) -> ControllerGenerator:
    """Draw one round of a vote; with a deadline it may be wider, and ends at the deadline.

    Args:
        num_more: Samples that the rule asks for.
        times: Sample times of the stack, updated by this round.
        num_needed: Samples of the round that the rule waits for; None waits for all.
        settles: Work that returns True if the given further samples settle the vote; None if only the round's end
            tells.
    """
    left = seconds_left()
    if left is None:
        yield from sampler.draw(num_more, num_needed)
        return
    own = [sample.seconds for sample in sampler.samples if sample.seconds is not None]
    num_more, is_wide = round_in_time(num_more, max(num_more, sampler.num_left), left, times, own)
    record("round_in_time", num_samples=num_more, wide=is_wide, seconds_left=round(left, 6))
    timed = TimedRound(left, 0 if sampler.samples else 1, settles if is_wide else None, num_needed)
    yield sampler.start(num_more, step=timed.step)
    times.add(sample.seconds for sample in timed.ended if sample.seconds is not None)
    sampler.keep(timed.ended[:], sampler.samples[-num_more:])


def samples_in_time(num_more: int, sampler: Sampler) -> tuple[int, bool]:
    """Limit the samples that a rule asks for by the deadline; the second value is True if it ends the vote."""
    left = seconds_left()
    if left is None or not num_more:
        return num_more, False
    num_more = min(num_more, max(0, sampler.num_left))
    is_over = left <= 0 or not num_more
    return (0 if is_over else num_more), is_over


def round_in_time(
    num_more: int,
    num_remaining: int,
    seconds_left: float,
    times: SampleTimes,
    own: Sequence[float],
    widening: int = WIDENING,
) -> tuple[int, bool]:
    """Return the number of samples of the next round, and True if it is a wide one.

    Args:
        num_more: Samples that the rule asks for, at least 1.
        num_remaining: Samples that may still be drawn, at least `num_more`.
        times: Sample times of the stack.
        own: Seconds of the vote's finished samples.
    """
    this, rest = (times.until_last(max(1, number), own) for number in (num_more, num_remaining - num_more))
    if this is None or rest is None or this + rest <= seconds_left:
        return num_more, False
    return min(num_remaining, widening * num_more), True


class TimedRound:
    """A round whose samples vote as they end, until they settle the vote or its time is over.

    Args:
        seconds: Time limit of the round.
        least: Samples that must end even if the time is over.
        settles: Work that returns True if the finished samples settle the vote; None if only their number counts.
        num_needed: Samples that are enough; None: all.
    """

    def __init__(
        self,
        seconds: float,
        least: int,
        settles: Settles | None,
        num_needed: int | None = None,
    ) -> None:
        self.ended: list[Sample] = []  # in the order of their end
        self._seconds = seconds
        self._least = least
        self._settles = settles
        self._num_needed = num_needed
        self._is_settled = self._is_asking = False

    def step(self, branches: Iterable[Any], samples: Sequence[Sample]) -> FirstBranches:
        heard = [self._heard(branch, sample) for branch, sample in zip(branches, samples, strict=True)]
        return FirstBranches(
            heard,
            self._num_needed,
            is_enough=lambda: self._is_settled,
            seconds=self._seconds,
            least=self._least,
        )

    def _heard(self, branch: Iterable[Any], sample: Sample) -> ControllerGenerator:
        began = elapsed()
        yield from branch
        sample.seconds = round(elapsed() - began, 6)
        self.ended.append(sample)
        if self._settles is None or self._is_asking:  # the branch that asks also covers those that end meanwhile
            return
        self._is_asking = True
        num_asked = 0
        while num_asked < len(self.ended) and not self._is_settled:
            num_asked = len(self.ended)
            self._is_settled = yield from self._settles(self.ended[:num_asked])
        self._is_asking = False
