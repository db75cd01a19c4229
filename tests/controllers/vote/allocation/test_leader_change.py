"""The Polya urn behind `LeaderChange`, against enumeration and seeded simulations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.controllers.vote.allocation.base import Rival, Standing, Votes, standing_of
from scaffolding_ext.controllers.vote.allocation.leader_change import (
    Curtailment,
    LeaderChange,
    change_probability,
    fit_concentration,
    overtake_probability,
)
from scaffolding_ext.controllers.vote.voting import vote
from tests.rounds import replay


def urn_change(seen: list[int], num_remaining: int, concentration: float, winner: int) -> float:
    """P(the winner changes), by drawing every continuation of the urn."""
    if not num_remaining:
        return float(vote(seen) != winner)
    total = len(seen) + concentration
    chances = {number: seen.count(number) / total for number in set(seen)}
    chances[max(seen) + 1] = concentration / total
    return sum(
        chance * urn_change([*seen, number], num_remaining - 1, concentration, winner)
        for number, chance in chances.items()
    )


@settings(max_examples=60, deadline=None)
@given(
    seen=st.lists(st.integers(0, 2), min_size=1, max_size=6),
    num_remaining=st.integers(0, 4),
    concentration=st.floats(0.2, 5),
)
def test_the_bound_holds_and_is_exact_with_one_rival_in_reach(
    seen: list[int], num_remaining: int, concentration: float
) -> None:
    exact = urn_change(seen, num_remaining, concentration, vote(seen))
    bound = change_probability(standing_of(Votes(seen, len(seen) + num_remaining)), concentration)
    assert exact <= bound + 1e-9
    standing = standing_of(Votes(seen, len(seen) + num_remaining))
    if len(standing.rivals) <= 1 and standing.lead >= num_remaining:  # no new class can win
        assert bound == pytest.approx(exact, abs=1e-9)


def weighted(classes: list[int], weights: list[float], num_remaining: int) -> Standing:
    return LeaderChange().standing(Votes(classes, len(classes) + num_remaining, weights=weights))


@settings(max_examples=40, deadline=None)
@given(
    ballots=st.lists(st.tuples(st.integers(-1, 2), st.integers(1, 12)), min_size=1, max_size=10),
    power=st.integers(-20, 20),
)
def test_only_the_ratio_of_weights_counts(ballots: list[tuple[int, int]], power: int) -> None:
    """Weights have no unit: eight times all weights, or weights that are all alike, change nothing."""
    scale = 2.0**power  # exact
    classes, weights = [number for number, _ in ballots], [float(weight) for _, weight in ballots]
    rule = LeaderChange(miss=0.05)

    def more(given: list[float] | None) -> int:
        return rule.num_more(Votes(classes, 16, weights=given))

    assert more(weights) == more([scale * weight for weight in weights])
    assert more([scale] * len(classes)) == more(None)


def test_the_urn_holds_weights() -> None:
    """Leader 3.25, rival 0.75, one new answer's worth of weight: 60,000 votes drawn on, each sample adding one."""
    standing = weighted([0, 0, 1, 0], [1.25, 1.0, 0.75, 1.0], num_remaining=6)
    assert standing.lead == pytest.approx(3.25)
    assert standing.rivals[0].num_votes == pytest.approx(0.75)
    rng, num_drawn, overtaken = np.random.default_rng(0), 60_000, 0
    masses = np.tile([3.25, 0.75, 1.0], (num_drawn, 1))
    for _ in range(6):
        taken = (rng.random(num_drawn)[:, None] > np.cumsum(masses, axis=1) / masses.sum(axis=1)[:, None]).sum(axis=1)
        masses[np.arange(num_drawn), taken] += 1
    overtaken = (masses[:, 1] > masses[:, 0]).mean()
    found = overtake_probability(standing.lead, standing.rivals[0], 4, 6, 1.0)
    assert found == pytest.approx(overtaken, abs=4 * math.sqrt(overtaken / num_drawn))


def test_samples_without_an_answer_count_as_the_rest_of_the_urn() -> None:
    """A sample without an answer may weigh nothing: that tells nothing of the others' unit."""
    assert weighted([0, -1, 0, -1], [0.5, 0.0, 0.5, 0.0], 4) == weighted([0, -1, 0, -1], [0.5, 9.0, 0.5, 9.0], 4)
    assert weighted([0, -1], [0.0, 0.0], 4).lead == 0
    assert LeaderChange().num_more(Votes([0, -1], 6, weights=[0.0, 0.0])) > 0


def test_a_tie_of_weights_is_won_by_the_first_answer() -> None:
    """0.1 + 0.2 and 0.3 differ in their last bit; the urn counts them as a tie."""
    first, second = Rival(0.3, True), Rival(0.3, False)
    assert overtake_probability(0.1 + 0.2, first, 4, 0, 1.0) == 1.0
    assert overtake_probability(0.1 + 0.2, second, 4, 0, 1.0) == 0.0


def test_without_a_miss_it_is_curtailment() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        classes = [int(number) for number in rng.integers(0, 3, 12)]
        expected = replay(Curtailment(leap=1.0), classes)
        assert replay(LeaderChange(miss=0.0, leap=1.0), classes) == expected


def test_on_its_own_urn_the_winner_changes_no_oftener_than_promised() -> None:
    """2,000 votes of 16 drawn from the urn; the share that changes is held to 4 binomial standard errors above miss."""
    rng = np.random.default_rng(5)
    num_votes, miss, concentration, changed = 2_000, 0.1, 1.5, 0
    rule = LeaderChange(miss=miss, concentration=concentration, leap=0.0)
    for _ in range(num_votes):
        classes: list[int] = []
        for size in range(16):
            new = rng.random() < concentration / (size + concentration)
            classes.append(max(classes, default=-1) + 1 if new else classes[int(rng.integers(size))])
        changed += vote(classes[: replay(rule, classes).num_samples]) != vote(classes)
    assert changed / num_votes <= miss + 4 * math.sqrt(miss * (1 - miss) / num_votes)
    assert changed > 0


def test_the_concentration_is_found_again() -> None:
    rng = np.random.default_rng(2)
    votes = []
    for _ in range(800):
        classes: list[int] = []
        for size in range(16):
            new = rng.random() < 2.0 / (size + 2.0)
            classes.append(max(classes, default=-1) + 1 if new else classes[int(rng.integers(size))])
        votes.append(classes)
    assert fit_concentration(votes) == pytest.approx(2.0, rel=0.1)
    with pytest.raises(ValueError, match="no vote"):
        fit_concentration([])
