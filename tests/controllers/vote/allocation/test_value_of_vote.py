"""The value of a further vote, against every continuation of the urn, and what its tokens cost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.controllers.vote.allocation.base import Votes
from scaffolding_ext.controllers.vote.allocation.value_of_vote import ValueOfVote, chance_of_another
from scaffolding_ext.errors import ConfigError
from tests.rounds import replay


def drawn_on(masses: tuple[float, float, float], gap: int, num_more: int) -> float:
    """P(the rival ends ahead of a leader that has `gap` votes more), half of a tie, by drawing every continuation."""
    if not num_more:
        return float(gap < 0) + 0.5 * (gap == 0)
    chance = 0.0
    for place, step in ((0, 1), (1, -1), (2, 0)):
        then = tuple(mass + (number == place) for number, mass in enumerate(masses))
        chance += masses[place] / sum(masses) * drawn_on(then, gap + step, num_more - 1)  # type: ignore[arg-type]
    return chance


states = st.tuples(st.integers(1, 6), st.integers(0, 6), st.integers(0, 4)).filter(lambda each: each[0] >= each[1])


@settings(max_examples=60, deadline=None)
@given(state=states, num_more=st.integers(1, 5))
def test_the_chance_is_that_of_all_continuations(state: tuple[int, int, int], num_more: int) -> None:
    lead, rival, others = state
    num_samples, mass = lead + rival + others, rival or 1
    expected = drawn_on((lead, mass, num_samples + 1 - lead - mass), lead - rival, num_more)
    assert chance_of_another(lead, rival, num_samples, num_samples + num_more) == pytest.approx(expected, abs=1e-9)


def test_the_end_of_the_vote_leaves_no_chance() -> None:
    assert chance_of_another(2, 2, 4, 4) == 0


def test_votes_ahead_are_weighed_by_the_urn() -> None:
    """At 3 to 1 the next of five votes is the leader's with 3 / 5, the rival's and a new one's with 1 / 5."""
    one = chance_of_another(3, 1, 4, 9, 1)
    after = [chance_of_another(*state, 5, 9) for state in ((4, 1), (3, 2), (3, 1))]
    assert one == pytest.approx((3 * after[0] + after[1] + after[2]) / 5)
    overtaken = chance_of_another(2, 2, 4, 9, 1)  # a rival that goes ahead is the new leader
    assert overtaken == pytest.approx((4 * chance_of_another(3, 2, 5, 9) + chance_of_another(2, 2, 5, 9)) / 5)


def test_a_vote_ends_at_its_price() -> None:
    """Of 3 to 1 a vote is worth so many hundredths of 100,000 tokens; it costs those that are written, a sample."""
    worth = (chance_of_another(3, 1, 4, 64) - chance_of_another(3, 1, 4, 64, 3)) / 3
    spent = 4 * 100_000 * worth / 0.03
    for running, more in ((spent - 402, 1), (spent - 398, 0)):
        votes = Votes([0, 0, 1, 0], 22, lengths=[100] * 4, running_tokens=int(running))
        assert ValueOfVote(leap=0.0).num_more(votes) == more


def test_running_samples_end_it_sooner() -> None:
    classes, lengths = [0, 1, 0, 0], [9_000] * 4
    alone, among = (
        ValueOfVote().num_more(Votes(classes, 22, lengths=lengths, running_tokens=running))
        for running in (0, 18 * 9_000)
    )
    assert among == 0 < alone


def test_three_samples_are_the_fewest() -> None:
    dear = ValueOfVote(price=1e9)
    assert replay(dear, [0] * 8, lengths=[10] * 8) == (3, 1, 10)
    assert replay(dear, [-1] * 8, lengths=[10] * 8).num_samples == 8  # without an answer it goes on


def test_leaps_save_rounds_and_cost_no_sample() -> None:
    classes = [0, 1, 0, 0, 2, 0, 0, 1, 0, 0, 0, 0]
    one_by_one, leaps = (replay(ValueOfVote(leap=leap), classes, lengths=[9_000] * 12) for leap in (0.0, 1.0))
    assert leaps.num_samples == one_by_one.num_samples
    assert leaps.num_rounds < one_by_one.num_rounds


def test_what_it_cannot_read_is_refused() -> None:
    with pytest.raises(ValueError, match="carry no lengths"):
        ValueOfVote().num_more(Votes([0, 0, 0], 8))
    with pytest.raises(ConfigError, match="counts every vote as 1"):
        ValueOfVote().check_weights(1.0)
    with pytest.raises(ConfigError, match="price"):
        ValueOfVote(price=0)


def test_votes_ahead_of_a_unanimous_vote_may_bring_its_first_rival() -> None:
    """At 3 to 0 the next of five votes is the leader's with 3 / 4, a new answer's with 1 / 4."""
    after = [chance_of_another(*state, 4, 9) for state in ((4, 0), (3, 1))]
    assert chance_of_another(3, 0, 3, 9, 1) == pytest.approx((3 * after[0] + after[1]) / 4)
