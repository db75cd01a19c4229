"""Votes that roll, replayed: against a simulation of events, one vote at a time."""

from __future__ import annotations

import dataclasses
import heapq
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.controllers.vote.allocation.agreement import AgreementDoubling
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule, SequentialRule, Votes
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.controllers.vote.allocation.value_of_vote import ValueOfVote
from scaffolding_ext.controllers.vote.draws import MOST_AHEAD, Order
from scaffolding_ext.controllers.vote.voting import vote
from scaffolding_ext.evaluation.logs.samples import Recording
from scaffolding_ext.evaluation.tune.choose import Cheapest, chosen, cross_validated
from scaffolding_ext.evaluation.tune.endings import Whole
from scaffolding_ext.evaluation.tune.replay import Replay
from scaffolding_ext.evaluation.tune.rolling import schedule
from scaffolding_ext.evaluation.tune.space import Setting
from scaffolding_ext.evaluation.tune.stack_file import setting_of, stack_of
from scaffolding_ext.evaluation.tune.table import TIME_SHARES, frontier_of, rows_of
from tests.evaluation.tune.recorded import recording


def flown(
    classes: list[int], lengths: list[int], rule: AllocationRule | None, in_flight: int, order: Order
) -> dict[str, Any]:
    """One vote, event by event."""
    most, began, running = len(classes), dict[int, int](), list[tuple[int, int]]()
    ended: set[int] = set()
    counted: list[int] = []
    now = 0

    def num_more() -> int:
        if rule is None:
            return most - len(counted)
        written = [lengths[number] for number in counted]
        left = sum(now - start for number, start in began.items() if number not in counted)
        if order == "index":
            left = max(written, default=0) * min(in_flight, most - len(counted))
        return rule.num_more(Votes([classes[number] for number in counted], most, lengths=written, running_tokens=left))

    due = max(1, num_more())
    while due > 0:
        ahead = MOST_AHEAD * in_flight if order == "index" else most
        while len(running) < in_flight and len(began) < min(most, len(counted) + ahead):
            began[len(began)] = now
            heapq.heappush(running, (now + lengths[len(began) - 1], len(began) - 1))
        now, number = heapq.heappop(running)
        ended.add(number)
        while due > 0 and (len(counted) in ended if order == "index" else number not in counted):
            counted.append(len(counted) if order == "index" else number)
            due -= 1
            if due <= 0 or isinstance(rule, SequentialRule):
                due = num_more()
    winner = vote([classes[number] for number in counted])
    tokens = sum(min(lengths[number], now - start) for number, start in began.items())
    return {"right": float(winner == 0), "decoded": tokens, "critical": now, "samples": len(counted)}


RULES = [
    *(None, LeaderChange(leap=2.0), AgreementDoubling(), ValueOfVote(price=3.0, size=10)),
]


@pytest.mark.parametrize("order", ["tokens", "index"])
@settings(max_examples=60, deadline=None)
@given(rule=st.sampled_from(RULES), seed=st.integers(0, 10_000), in_flight=st.integers(1, 12))
def test_a_vote_in_flight_is_that_of_a_simulation(
    rule: AllocationRule | None, order: Order, seed: int, in_flight: int
) -> None:
    plays = Replay(recording(4, 10, seed=seed, ability=0.5))
    played = plays.play(Setting(Whole(), 10, rule, in_flight=in_flight, order=order))
    classes, lengths = plays.votes.ordered(plays.votes.samples.classes), plays.votes.ordered(plays.votes.samples.tokens)
    expected = [
        flown(own.tolist(), length.tolist(), rule, in_flight, order)
        for own, length in zip(classes, lengths, strict=True)
    ]
    for name in ("right", "decoded", "critical", "samples"):
        values = plays.votes.mean(np.array([each[name] for each in expected], dtype=float))
        found = played.costs[name] if name in ("decoded", "critical") else getattr(played, name)
        np.testing.assert_allclose(found, values, err_msg=name)


def test_by_index_a_flight_decides_as_one_by_one_sampling() -> None:
    plays = Replay(recording(40, 10, ability=0.5))
    one_by_one = plays.play(Setting(Whole(), 10, LeaderChange(leap=0.0)))
    by_index = plays.play(Setting(Whole(), 10, LeaderChange(), in_flight=4, order="index"))
    np.testing.assert_array_equal(by_index.right, one_by_one.right)
    np.testing.assert_array_equal(by_index.samples, one_by_one.samples)
    assert by_index.costs["decoded"].sum() > one_by_one.costs["decoded"].sum()
    assert by_index.costs["critical"].sum() < one_by_one.costs["critical"].sum()


def test_one_in_flight_is_one_by_one_sampling_and_all_at_once_ends_with_the_longest() -> None:
    plays = Replay(recording(40, 10, ability=0.5))
    one = plays.play(Setting(Whole(), 10, LeaderChange(), in_flight=1))
    one_by_one = plays.play(Setting(Whole(), 10, LeaderChange(leap=0.0)))
    for name, values in one_by_one.costs.items():
        np.testing.assert_allclose(one.costs[name], values)
    every = plays.play(Setting(Whole(), 10, None, in_flight=10))
    np.testing.assert_allclose(every.costs["critical"], plays.full.costs["critical"])
    np.testing.assert_allclose(every.costs["decoded"], plays.full.costs["decoded"])


def test_a_schedule_by_hand() -> None:
    """Two places; the second sample ends first and makes room for the third, which ends with the first."""
    found = schedule(np.array([[50.0, 20.0, 30.0, 5.0]]), 2, "tokens")
    assert found.order.tolist() == [[1, 0, 2, 3]]
    assert found.counts.tolist() == [[20, 50, 50, 55]]
    assert found.began.tolist() == [[0, 0, 20, 50]]
    found = schedule(np.array([[50.0, 20.0, 10.0, 5.0, 9.0]]), 2, "index")
    assert found.counts.tolist() == [[50, 50, 50, 50, 59]]
    assert found.began.tolist() == [[0, 0, 20, 30, 50]]  # four are begun beyond those that count: no more


def test_flights_are_tried_and_the_stack_file_gives_them_back() -> None:
    plays = Replay(recording(40, 10, ability=0.6))
    plays.try_all()
    settings_tried = plays.lists["LeaderChange, 4 in flight"]
    row = rows_of(plays, {"chosen": plays.played[settings_tried[0]]})[0]
    stack = stack_of(settings_tried[0], row, plays, promise=None)
    again = setting_of(stack)
    assert (again.in_flight, again.order, again.rule) == (4, "tokens", settings_tried[0].rule)
    assert "4 at once" in str(again)
    assert stack.tuned is not None


def chains(num_questions: int, *, seed: int = 0) -> Recording:
    """Thinking chains on hard questions: of four in ten that are right, most are short, and wrong answers scatter."""
    rng, questions = np.random.default_rng(seed), []
    for question in recording(num_questions, 16, seed=seed).questions:
        right = rng.random(16) < rng.uniform(0.2, 0.6)
        classes = np.where(right, 0, rng.integers(1, 12, 16))
        tokens = np.where(right, rng.integers(2_000, 9_000, 16), rng.integers(6_000, 30_000, 16))
        questions.append(dataclasses.replace(question, classes=classes, correct=right, tokens=tokens))
    return Recording(questions, ["here"], "sha256:0")


def test_the_frontier_goes_from_tokens_to_time_and_is_judged_by_others() -> None:
    plays, goal = Replay(chains(12)), Cheapest(0.02)
    plays.try_all()
    rows = frontier_of(plays, goal)
    assert 2 <= len(rows) <= len(TIME_SHARES)
    assert [row.time_share for row in rows] == sorted({row.time_share for row in rows})
    assert len({row.setting for row in rows}) == len(rows)
    for row in rows:
        judged = cross_validated(plays, goal, time_share=row.time_share)
        assert row.setting is chosen(plays, goal, row.time_share)
        assert row.points.value == pytest.approx(100 * (judged.right - plays.full.right).mean())
        for name, share in (("decoded", row.tokens), ("critical", row.path)):
            assert share.value == pytest.approx(judged.costs[name].sum() / plays.full.costs[name].sum())


def test_a_vote_at_once_of_short_right_chains_takes_less_of_both_and_comes_back_from_its_stack() -> None:
    """Chains that end first are right more often; then fewer of them do, and none waits for a round."""
    plays = Replay(chains(60))
    setting = Setting(Whole(), 8, LeaderChange(), in_flight=8)
    rounds, at_once = plays.play(plays.default), plays.play(setting)
    for cost in ("decoded", "critical"):
        assert at_once.costs[cost].sum() < rounds.costs[cost].sum()
    assert at_once.right.mean() > rounds.right.mean() - 0.01
    (row,) = rows_of(plays, {"chosen": at_once})
    again = setting_of(stack_of(setting, row, plays, promise=None))
    assert (again.num_samples, again.in_flight, again.rule) == (8, 8, LeaderChange())


def test_without_tokens_there_is_no_time() -> None:
    missing = frozenset({"tokens", "seconds", "logprobs", "rewards", "probes"})
    questions = [dataclasses.replace(each, missing=missing) for each in recording(20, 8).questions]
    plays = Replay(Recording(questions, ["here"], "sha256:0"))
    plays.try_all()
    assert frontier_of(plays, Cheapest(0.02)) == []
    assert not any("at once" in name for name in plays.lists)
