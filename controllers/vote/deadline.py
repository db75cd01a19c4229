"""How a vote spends the time until its deadline: small rounds where it is long, wide ones where it is short.

A rule that stops early draws round after round, and the rounds of a vote take longer than all samples at once. Where
two more rounds would be late, the next one is wider, and ends as soon as the samples that have ended settle the vote.
At the deadline the vote answers with those that it has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.vote.samples import Sample
from scaffolding_ext.protocol import ControllerGenerator
from scaffolding_ext.protocol.tasks import FirstBranches
from scaffolding_ext.request.program import elapsed

WIDENING = 2
_NUM_KEPT = 256


class SampleTimes:
    """How long the samples of a stack's votes take, by those that have ended.

    Args:
        expected: Seconds of a sample, as long as none has ended; None: nothing is known then.

    Raises:
        ConfigError: `expected` is not above 0.
    """

    def __init__(self, expected: float | None = None) -> None:
        known = [] if expected is None else [require.number("sample_seconds", expected, above=0)]
        self._seconds: deque[float] = deque(known, _NUM_KEPT)

    def add(self, seconds: Sequence[float]) -> None:
        """Take note of samples that have ended."""
        self._seconds.extend(seconds)

    def until_last(self, num_samples: int, own: Sequence[float]) -> float | None:
        """Expected seconds until the last of some samples ends that start together; None where nothing is known.

        Args:
            num_samples: At least 1.
            own: Seconds of the samples of the same question that have ended; they scale those of all questions.
        """
        if not self._seconds:
            return None
        seconds = np.sort(np.array(self._seconds))
        ranks = np.arange(len(seconds) + 1) / len(seconds)
        expected = float(seconds @ np.diff(ranks**num_samples))
        mean = float(seconds.mean())
        return expected * (sum(own) + mean) / (len(own) + 1) / mean if mean else 0.0


def round_in_time(
    num_more: int,
    num_remaining: int,
    seconds_left: float,
    times: SampleTimes,
    own: Sequence[float],
    widening: int = WIDENING,
) -> tuple[int, bool]:
    """Samples of the next round, and whether it is a wide one.

    Args:
        num_more: Samples that the rule asks for, at least 1.
        num_remaining: Samples that may still be drawn, at least as many.
        seconds_left: Until the deadline.
        times: Of the stack.
        own: Seconds of the vote's own samples that have ended.
        widening: A wide round has so many times the samples that the rule asks for.
    """
    this, rest = (times.until_last(max(1, number), own) for number in (num_more, num_remaining - num_more))
    if this is None or rest is None or this + rest <= seconds_left:
        return num_more, False
    return min(num_remaining, widening * num_more), True


class TimedRound:
    """A round whose samples vote as they end, until they settle the vote or its time is over.

    Args:
        seconds: Time that the samples have.
        least: Samples that must end, though the time is over.
        settles: Work that says whether the samples that have ended settle the vote; None: nothing but their number
            does. It runs for one sample at a time.
        num_needed: Samples that are enough; None: all.

    Attributes:
        ended: The samples that have ended, in that order.
    """

    def __init__(
        self,
        seconds: float,
        least: int,
        settles: Callable[[Sequence[Sample]], ControllerGenerator] | None,
        num_needed: int | None = None,
    ) -> None:
        self.ended: list[Sample] = []
        self._seconds = seconds
        self._least = least
        self._settles = settles
        self._num_needed = num_needed
        self._is_settled = self._is_asking = False

    def step(self, branches: Iterable[Any], samples: Sequence[Sample]) -> FirstBranches:
        """The step of the round, from the branches of its samples."""
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
        if self._settles is None or self._is_asking:  # the branch that asks goes on with those that end meanwhile
            return
        self._is_asking = True
        num_asked = 0
        while num_asked < len(self.ended) and not self._is_settled:
            num_asked = len(self.ended)
            self._is_settled = yield from self._settles(self.ended[:num_asked])
        self._is_asking = False
