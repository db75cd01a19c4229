"""Recorded programs under each policy, against what can be said of them by hand and by the queues without programs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from benchmarks._lib.simulator import (
    Program,
    RequestRound,
    RoundEnd,
    Work,
    arrival_times,
    fixed_program,
    serve_programs,
)
from scaffolding_ext.controllers.budgets.queueing.queues import Queue
from scaffolding_ext.registry import policies
from scaffolding_ext.request.program import Progress, StepCounts
from scaffolding_ext.scheduling import EarliestDeadline, Fifo, Gang, LeastAttained, Policy, ShortestRemaining


class Fixed(NamedTuple):
    """A program of fixed rounds, the tokens of all, and its deadline in seconds from its arrival."""

    work: Program
    num_tokens: int
    deadline: float | None


def program(*rounds: tuple[int, ...], deadline: float | None = None, knob: int = 1) -> Fixed:
    done = [sum(map(len, rounds[:number])) for number in range(len(rounds))]
    told = (StepCounts("test", first, max(knob - first, 1)) for first in done)
    return Fixed(fixed_program(*map(RequestRound, rounds, told)), sum(map(sum, rounds)), deadline)


def served(policy: Policy, *programs: Fixed, at: list[float] | None = None, places: int = 1) -> list[float]:
    arrivals = np.array(at or [0.0] * len(programs))
    within = np.array([np.inf if each.deadline is None else each.deadline for each in programs])
    works = [each.work for each in programs]
    return serve_programs(works, arrivals, Queue(places), 1.0, policy, within).departures.tolist()


def test_the_paper_s_example_goes_from_9_to_6_5_ms() -> None:
    """Certaindex, on gang scheduling: two programs of two requests, 4 and 5 ms, on an engine with a batch of 2."""
    both = program((4, 4)), program((5, 5))
    assert served(Fifo(), *both, places=2) == [8, 10]
    assert served(Gang(), *both, places=2) == [4, 9]


def test_a_second_round_queues_up_anew_unless_programs_are_served_together() -> None:
    both = program((3,), (3,)), program((5,), (5,))
    assert served(Fifo(), *both, at=[0, 1]) == [11, 16]
    assert served(Gang(), *both, at=[0, 1]) == [6, 16]


def test_the_shortest_remaining_goes_first_by_what_was_learned() -> None:
    policy = ShortestRemaining(phi=100)
    for kind, tokens in (("long", 90), ("short", 10)):
        policy.learn(Progress(0, 0.0, None, tokens, StepCounts(kind, 3)))
    long, short, sure = StepCounts("long", 0, 2), StepCounts("short", 0, 4), StepCounts("long", 2, 6, certaindex=0.95)
    tokens = [policy.priority(Progress(1, 0.0, None, 0, steps)) for steps in (long, short)]
    assert tokens == pytest.approx([2 * 30, 4 * 10 / 3])
    assert policy.priority(Progress(1, 0.0, None, 60, sure)) == pytest.approx(6 * 0.05 * 30)
    wordy = Progress(1, 0.0, None, 180, StepCounts("long", 2, 6))
    assert policy.priority(wordy) == pytest.approx(6 * (180 + 30) / 3)  # its kind's mean counts as one step
    own = Progress(1, 0.0, None, 50, StepCounts("new", 2, 4, 0.5))
    assert policy.priority(own) == pytest.approx(4 * 0.5 * 25)  # of its kind it knows this one alone
    assert policy.priority(own._replace(arrived=200.0)) == pytest.approx(50 + 200 / 100)


def test_a_program_that_said_nothing_of_its_steps_had_one() -> None:
    policy = ShortestRemaining(phi=100)
    assert (
        policy.num_tokens(Progress(1, 0.0, None, 0, StepCounts("", 0, 4, 0.5))) == 2
    )  # nothing is known: a step is a token
    for tokens in (40, 60):
        policy.learn(Progress(0, 0.0, None, tokens))
    policy.learn(Progress(0, 0.0, None, 0))  # it failed before its first token: nothing to learn
    assert policy.num_tokens(Progress(1, 0.0)) == 50
    policy.learn(Progress(0, 0.0, None, 40, StepCounts("", 2)))
    assert policy.num_tokens(Progress(1, 0.0)) == 35  # 140 tokens in 1 + 1 + 2 steps


def test_the_least_attained_goes_before_those_that_had_more() -> None:
    both = program((4,), (4,)), program((5,), (1,))
    assert served(LeastAttained(phi=1e9), *both) == [13, 14]
    assert served(LeastAttained(phi=1e9), *both, program((4,)), at=[0, 0, 5]) == [17, 18, 13]


def test_the_earliest_deadline_goes_first_and_a_program_without_one_has_the_policy_s() -> None:
    three = program((5,)), program((5,), deadline=30), program((5,), deadline=10)
    assert served(EarliestDeadline(within=20), *three) == [10, 15, 5]


@pytest.mark.parametrize("policy", [LeastAttained, ShortestRemaining])
def test_phi_bounds_how_many_pass_a_long_program_by(policy: type[LeastAttained | ShortestRemaining]) -> None:
    """Short ones come without end; a long one is passed over by those alone that come before its tokens times phi."""
    num_short, phi = 200, 0.5
    long, short = program((50,), (50,), knob=2), program((2,))
    arrivals = [0.0, *np.arange(0, 2 * num_short, 2.0).tolist()]  # as fast as they are served
    ends = {}
    for each in (phi, 1e9):
        ends[each] = served(policy(each), long, *[short] * num_short, at=arrivals)[0]
    assert ends[1e9] > 2 * num_short
    assert ends[phi] <= 100 + 2 * 50 * phi + 50


@pytest.mark.parametrize("name", policies.names())
def test_every_policy_serves_everybody_and_loses_no_time(name: str) -> None:
    rng = np.random.default_rng(0)
    programs = [
        program(*(tuple(rng.integers(1, 50, rng.integers(1, 5)).tolist()) for _ in range(rng.integers(1, 4))), knob=16)
        for _ in range(200)
    ]
    arrivals = np.cumsum(rng.exponential(60.0, len(programs)))
    works = [each.work for each in programs]
    ends = serve_programs(works, arrivals, Queue(1), 1.0, policies.build(name)).departures
    assert (ends > arrivals).all()
    alone = [sum(each.num_tokens for each in programs)]
    assert ends.max() >= sum(alone)
    busy = np.zeros(len(programs))  # one server that never idles ends each busy time where any other order ends it
    end = 0.0
    for number, (each, arrival) in enumerate(zip(programs, arrivals, strict=True)):
        end = max(end, arrival) + each.num_tokens
        busy[number] = end
    assert ends.max() == pytest.approx(busy.max())
    slowest = serve_programs(works, np.zeros(len(programs)), Queue(4, 0.2), 1.0, policies.build(name))
    assert slowest.departures.max() >= sum(alone) / Queue(4, 0.2).capacity


def timed(now: float, deadline: float) -> Work:
    """Two chains until the deadline, and then one more."""
    end: RoundEnd = yield RequestRound((50, 5), until=deadline)
    yield RequestRound((3,))
    return end


def test_a_round_ends_at_its_time_and_stops_what_runs_or_waits() -> None:
    served = serve_programs([timed, timed], np.array([0.0, 1.0]), Queue(1), 1.0, None, np.array([20.0, 30.0]))
    first, second = served.answers
    assert (first.now, first.ended, second.now, second.ended) == (20, (), 31, ())
    assert served.departures.tolist() == [34, 37]  # the last chain of the first waits for the second program
    assert served.num_tokens.tolist() == [20 + 3, 11 + 3]


def late(now: float, deadline: float) -> Work:
    """Asks for a chain when its time is over, and then for one without an end."""
    end: RoundEnd = yield RequestRound((50,), until=now)
    yield RequestRound((3,))
    return end


def test_a_round_whose_time_is_over_ends_at_once_and_never_runs() -> None:
    served = serve_programs([late], np.array([2.0]), Queue(1), 1.0)
    assert (served.answers[0].now, served.answers[0].ended) == (2, ())
    assert (served.departures.tolist(), served.num_tokens.tolist()) == ([5], [3])


def test_arrivals_are_a_poisson_process_and_more_of_them_begin_alike() -> None:
    num = 200_000
    times = arrival_times(4.0, num, np.random.default_rng(0))
    gaps = np.diff(times)
    assert (gaps >= 0).all()
    assert gaps.mean() == pytest.approx(0.25, abs=5 * 0.25 / num**0.5)  # five standard errors
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=0.03)
    np.testing.assert_array_equal(times[:10], arrival_times(4.0, 10, np.random.default_rng(0)))
