"""The study of deadlines: votes of any width draw all their samples, deadlines, rates and resamples by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks._lib.report import Report
from benchmarks._lib.simulator import serve_programs
from benchmarks.studies.deadlines import (
    ALL,
    DEFAULT,
    FIRST_COME,
    IN_TIME,
    RATES,
    STATIC,
    Ballot,
    Engine,
    Load,
    Workload,
    asked_once,
    largest_rate,
    rule_of,
    vote_program,
)
from scaffolding_ext.controllers.budgets.queueing.queues import Queue
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange


def votes(width: int, lengths: range = range(10, 70, 10)) -> list[LabelledVote]:
    return [LabelledVote(f"q{n}", [0] * width, [True] * width, [length] * width) for n, length in enumerate(lengths)]


def load(width: int, num: int = 60, **options: object) -> Load:
    engine = Engine(Queue(4), 1.0)
    return Load(votes(width), engine, num, np.random.default_rng(0), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [4, 16, 40])
def test_all_samples_are_all_of_them_whatever_the_width_of_a_vote(width: int) -> None:
    own = load(width)
    served = own.served(ALL, own.num_more(ALL), FIRST_COME, 0.5, 3.0)
    assert set(served.drawn) == {width}
    assert own.full_rate == pytest.approx(4 / np.mean([sum(vote.lengths) for vote in own.votes]))


@pytest.mark.parametrize(("width", "drawn"), [(8, 3), (16, 5)])
def test_the_static_threshold_looks_once_at_the_papers_knob(width: int, drawn: int) -> None:
    own = load(width)
    assert set(own.served(STATIC, own.num_more(STATIC), FIRST_COME, 0.5, 3.0).drawn) == {drawn}
    split = LabelledVote("q", [0, 1] * (width // 2), [True] * width, [1] * width)
    assert len(Ballot(*run(split, STATIC)).voted) == width


def run(vote: LabelledVote, stopping: str, within: float = np.inf) -> Ballot:
    program = vote_program(vote, asked_once(rule_of(stopping, len(vote.classes))), stopping == IN_TIME)
    done = serve_programs([program], np.zeros(1), Queue(64), 1.0, deadlines=np.array([within]))
    ballot: Ballot = done.answers[0]
    return ballot


def test_a_vote_that_knows_its_deadline_answers_with_what_has_ended() -> None:
    vote = LabelledVote("q", [0, 1] * 8, [True] * 16, list(range(1, 17)))
    assert run(vote, IN_TIME) == run(vote, DEFAULT)  # there is time enough
    assert run(vote, IN_TIME, within=4 / 0.95).voted == [0, 1]  # lengths 3 and 4 begin at 2, and 2 s are left
    assert run(vote, IN_TIME, within=6.1 / 0.95).voted == [0, 1, 2, 3]
    assert run(vote, IN_TIME, within=0.5).voted == [0]  # none has ended: the first one to end answers late


def test_deadlines_are_those_of_a_third_of_the_questions_by_length() -> None:
    own = load(4)
    by_length = own.alone[np.argsort([sum(vote.lengths) for vote in own.votes])]
    assert (np.diff(by_length) >= 0).all()
    assert len(set(by_length.round(6))) == 3


def test_chains_are_votes_of_one_sample() -> None:
    own = load(16, 200, has_chains=True)
    assert {len(vote.classes) for vote in own.votes} == {1, 16}
    assert set(own.served(DEFAULT, asked_once(LeaderChange()), FIRST_COME, 0.5, 3.0).drawn) == {1, 2}


def test_the_largest_rate_lies_between_the_rates_that_were_tried() -> None:
    rest = len(RATES) - 3
    shares = np.array([[1.0, 0.95, 0.85, *[0.5] * rest], [0.8] * len(RATES), [1.0] * len(RATES), [0.9] * len(RATES)]).T
    expected = [(RATES[1] + RATES[2]) / 2, 0.0, RATES[-1], RATES[-1]]
    assert largest_rate(shares) == pytest.approx(expected)


def test_resamples_draw_whole_seeds_and_whole_questions() -> None:
    loads = [load(4), load(4)]
    workload = Workload("w", loads, Report("deadlines", {}))
    seeds = np.repeat([0.0, 1.0], [len(each.votes[each.counted]) for each in loads])
    means = workload.mean(seeds)
    assert means[0] == pytest.approx(seeds.mean())
    assert {0.0, 1.0} <= set(means[1:])  # some resamples have only one of the seeds
