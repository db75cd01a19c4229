"""Fit a vote into its deadline: small rounds while time allows, wide ones when it runs short.

Drawing round after round takes longer than drawing all samples at once. If two more rounds would be late, the next one
is wider and ends as soon as the finished samples settle the vote. At the deadline the vote answers with the samples it
has.
"""

from __future__ import annotations

from collections.abc import Sequence

from scaffolding_ext.controllers.sample_times import SampleTimes

WIDENING = 2


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
