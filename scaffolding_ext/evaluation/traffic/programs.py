"""Programs for the simulated engine: which requests they send side by side, and what they do when these have ended."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from scaffolding_ext.controllers.budgets.queueing.simulation import NEVER
from scaffolding_ext.controllers.certaindex import entropy_certaindex
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, Votes
from scaffolding_ext.controllers.vote.deadline import WIDENING, SampleTimes, round_in_time
from scaffolding_ext.request.program import LAST_STEP, StepCounts


class RequestRound(NamedTuple):
    """Requests that a program sends at once.

    The round ends when all of them have ended, when `is_enough` says so, or at `until`. Requests that still run then
    are stopped.

    Attributes:
        num_tokens: Tokens that each request decodes if it runs to its end; at least one request.
        steps: How far the program is when it sends them.
        is_enough: Called each time that a request ends, with the indices of those that have ended, in that order.
        until: Simulated seconds.
    """

    num_tokens: tuple[float, ...]
    steps: StepCounts = StepCounts()
    is_enough: Callable[[Sequence[int]], bool] | None = None
    until: float = NEVER


class RoundEnd(NamedTuple):
    """How a round ended.

    Attributes:
        now: Simulated seconds.
        ended: Indices of the requests that ran to their end, in the order of their ends.
        seconds: From the round's beginning to the end of each of these, waiting included.
    """

    now: float
    ended: tuple[int, ...]
    seconds: tuple[float, ...]


Work = Generator[RequestRound, RoundEnd, Any]
"""What a program does: it yields rounds, is sent the end of each, and returns its answer."""

Program = Callable[[float, float], Work]
"""Begins a program, given its arrival and its deadline in simulated seconds (infinite without one)."""


def fixed_program(*rounds: RequestRound, answer: Any = None) -> Program:
    """A program that sends the same rounds whenever it is served."""

    def work(now: float, deadline: float) -> Work:
        yield from (each for each in rounds)  # a tuple's own iterator takes nothing that is sent to it
        return answer

    return work


def chain_program(num_tokens: float, answer: Any = None) -> Program:
    """A single chain of so many tokens."""
    return fixed_program(RequestRound((num_tokens,)), answer=answer)


def vote_program(rule: AllocationRule, classes: Sequence[int], lengths: Sequence[int]) -> Program:
    """A vote over recorded samples, drawn in their order as a rule draws them. Its answer: indices of those that voted.

    Args:
        classes: Class of each sample's answer, shape [num_samples]; -1 where there is none.
        lengths: Tokens of each sample, shape [num_samples].
    """
    max_samples = len(classes)

    def work(now: float, deadline: float) -> Work:
        voted: list[int] = []
        num_started, num_more = 0, _num_more(rule, classes, lengths, voted, max_samples) or 1
        while num_more:
            drawn = range(num_started, num_started + num_more)
            num_needed = rule.num_to_wait_for
            is_enough = None if num_needed is None else so_many(num_needed)
            steps = vote_steps([classes[index] for index in voted], max_samples)
            end = yield RequestRound(tuple(lengths[index] for index in drawn), steps, is_enough)
            voted += [drawn[index] for index in sorted(end.ended)]
            num_started = drawn.stop
            num_more = _num_more(rule, classes, lengths, voted, max_samples)
        return voted

    return work


def vote_in_time_program(
    rule: AllocationRule,
    classes: Sequence[int],
    lengths: Sequence[int],
    times: SampleTimes,
    widening: int = WIDENING,
) -> Program:
    """A vote that knows its deadline, as the controller of votes draws it; else as `vote_program`.

    Args:
        times: Of all votes that are served together; it learns from them.
        widening: As `round_in_time` takes it.
    """
    max_samples = len(classes)

    def work(now: float, deadline: float) -> Work:
        voted: list[int] = []
        own: list[float] = []
        until = deadline - LAST_STEP * (deadline - now)
        num_started, num_more = 0, _num_more(rule, classes, lengths, voted, max_samples) or 1
        while num_more:
            num_more, is_wide = round_in_time(num_more, max_samples - num_started, until - now, times, own, widening)
            drawn = range(num_started, num_started + num_more)

            def is_settled(
                ended: Sequence[int], before: Sequence[int] = tuple(voted), first: int = drawn.start
            ) -> bool:
                seen = [*before, *(first + each for each in ended)]
                return not _num_more(rule, classes, lengths, seen, max_samples)

            steps = vote_steps([classes[index] for index in voted], max_samples)
            end = yield RequestRound(
                tuple(lengths[index] for index in drawn), steps, is_settled if is_wide else None, until
            )
            voted += [drawn[index] for index in sorted(end.ended)]
            own += end.seconds
            times.add(end.seconds)
            now, num_started = end.now, drawn.stop
            num_more = _num_more(rule, classes, lengths, voted, max_samples)
            if num_started == max_samples or now >= until:
                break
        if not voted:  # the first of them to end answers late; here it begins again
            yield RequestRound((min(lengths[:num_started]),))
            voted = [lengths.index(min(lengths[:num_started]))]
        return voted

    return work


def vote_steps(classes: Sequence[int], max_samples: int) -> StepCounts:
    """How far a vote with these classes is, as the controller says it."""
    return StepCounts("vote", len(classes), max_samples - len(classes), entropy_certaindex(classes))


def so_many(number: int) -> Callable[[Sequence[int]], bool]:
    """A round is over when so many of its requests have ended."""
    return lambda ended: len(ended) >= number


def _num_more(
    rule: AllocationRule, classes: Sequence[int], lengths: Sequence[int], voted: Sequence[int], max_samples: int
) -> int:
    return rule.num_more(
        Votes([classes[index] for index in voted], max_samples, lengths=[lengths[index] for index in voted])
    )
