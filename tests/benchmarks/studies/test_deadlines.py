"""Recorded searches as programs, and the figures of the study of deadlines, against what can be said by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from benchmarks._lib.load_programs import RecordedSearch, RecordedVote
from benchmarks._lib.searching import Searched
from benchmarks.studies.deadlines import POWER, RATES, Cells, Engine, largest_rate, least_seen
from scaffolding_ext.controllers.budgets.queueing.queues import Queue
from scaffolding_ext.controllers.vote.allocation.baselines import Even
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.controllers.vote.deadline import SampleTimes
from scaffolding_ext.evaluation.traffic.simulator import serve_programs

# four leaves: none ends in the first round, three in the second, the last one in the third
SEARCH = RecordedSearch([[40, 0], [80, 3], [90, 4]], [0, 0, 0, 1], [0.5, 0.5, 0.5, 0.9], [True, True, True, False])


def served(program: object, within: float = np.inf) -> tuple[float, list[int]]:
    """Seconds and votes of a program that is served alone, a token a second, with a place for each leaf."""
    ends = serve_programs([program], np.zeros(1), Queue(4), 1.0, deadlines=np.array([within]))  # type: ignore[list-item]
    return float(ends.departures[0]), list(ends.answers[0])


def test_a_search_is_served_round_by_round_and_ends_where_a_rule_stops_it() -> None:
    assert served(SEARCH.program(Even())) == (10 + 10 + 10, [0, 1, 2, 3])
    assert served(SEARCH.program(LeaderChange())) == (20, [0, 1, 2])
    assert SEARCH.stopped(LeaderChange()) == (range(3), 80)


@pytest.mark.parametrize(("within", "seconds"), [(60, 30), (36, 24), (12, 20)])
def test_a_search_with_a_deadline_ends_in_two_thirds_of_it_once_it_has_a_leaf(within: float, seconds: float) -> None:
    found, voted = served(SEARCH.program_in_time(Even(), SampleTimes()), within)
    assert found == pytest.approx(seconds)
    assert voted == ([0, 1, 2, 3] if seconds == 30 else [0, 1, 2])


def test_a_search_is_read_from_what_a_study_of_searches_keeps() -> None:
    kept = Searched("?", 2, ["7", None, "7.0", "8"], [True, False, True, False], [0.5, 0.1, 0.5, 0.9],
        [40] * 4, 0, 0, 90, 0, 8, 160, 0.0, SEARCH.rounds)  # fmt: skip
    found = RecordedSearch.of(kept)
    assert found.classes == [0, -1, 0, 1]
    assert found.stopped(Even()) == (range(4), 90)
    assert found.size == 90 / 4


def test_leaves_vote_by_their_values() -> None:
    assert SEARCH.is_right([0, 1, 2, 3])
    assert not SEARCH.is_right([0, 3])


@pytest.mark.parametrize("definition", ["equal", "by thirds", "by question"])
def test_full_votes_are_in_time_as_often_as_their_definition_of_a_deadline_says(definition: str) -> None:
    votes = [RecordedVote([0] * 4, [length] * 4, [True] * 4) for length in (10, 20, 30, 40, 50, 60)]
    cells = Cells(votes, votes, Engine(Queue(4), 1.0), 60, np.random.default_rng(0), definition=definition)
    quiet = cells.served("none", "first come", 1e-4, 1.0)
    shares = [cells.in_time(quiet, slo)[0] for slo in (1.001, 10.0)]
    assert shares[1] == 1.0
    assert (shares[0] == 1.0) == (definition == "by question")


def test_the_largest_rate_lies_between_the_rates_that_were_tried() -> None:
    shares = [1.0, 0.95, 0.85, *[0.5] * (len(RATES) - 3)]
    assert largest_rate(shares, 0.9) == pytest.approx((RATES[1] + RATES[2]) / 2)
    assert largest_rate(shares, 1.01) == 0
    assert largest_rate([1.0] * len(RATES), 0.9) == RATES[-1]


def test_a_difference_that_is_seen_is_seen_so_often() -> None:
    """Of 4,000 draws the share lies within four standard deviations, 0.019, of the power."""
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((4000, 5))
    pattern = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    shift = least_seen((pattern / pattern.std(ddof=1)).tolist())  # of a deviation of 1
    found = ttest_1samp(noise + shift, 0.0, axis=1)
    assert np.mean((found.pvalue < 0.05) & (found.statistic > 0)) == pytest.approx(POWER, abs=0.019)
