"""Power against the normal formula and against evaluations that are really run.

A share of `n` simulations is held to 4 binomial standard errors, `4 * sqrt(p * (1 - p) / n)`.
"""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest

from benchmarks._lib.power import bootstrap_power, required_num_questions

Z95 = NormalDist().inv_cdf(0.975)


def seeded(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def tolerance(share: float, num_runs: int) -> float:
    """Four binomial standard errors."""
    return 4 * math.sqrt(share * (1 - share) / num_runs)


def normal_power(sd: float, num_questions: int, distance: float) -> float:
    return NormalDist().cdf(distance * math.sqrt(num_questions) / sd - Z95)


@pytest.mark.parametrize("bar", [-1.5, -1.0, -0.5, 0.0, 0.25])
def test_power_matches_every_evaluation_enumerated(bar: float) -> None:
    pilot = np.array([3.0, -1.0, 0.5, 2.0, 1.0, -2.5, 0.0, 1.5])
    questions = np.array([1, 2, 2, 3, 4, 1, 2, 4])
    shifted = pilot - pilot.mean() + 0.5
    outcomes = []
    for draw in itertools.product([shifted[questions == one] for one in (1, 2, 3, 4)], repeat=4):
        mean = np.concatenate(draw).mean()
        residuals = np.array([np.sum(drawn - mean) for drawn in draw])
        standard_error = math.sqrt(4 / 3 * np.sum(residuals**2)) / sum(map(len, draw))
        outcomes.append(standard_error > 1e-9 and mean - Z95 * standard_error > bar)
    power = bootstrap_power(
        pilot, questions, num_questions=4, bar=bar, effect=0.5, rng=seeded(), num_simulations=40_000
    )
    expected = float(np.mean(outcomes))
    assert 0 < expected < 1
    assert power == pytest.approx(expected, abs=tolerance(expected, 40_000))


@pytest.mark.parametrize("num_questions", [50, 400])
@pytest.mark.parametrize(("bar", "effect"), [(-0.1, 0.0), (0.0, 0.15), (-0.05, None)])
def test_power_matches_the_normal_formula(num_questions: int, bar: float, effect: float | None) -> None:
    pilot = seeded(3).normal(0.1, 1.0, size=3_000)
    pilot += 0.1 - pilot.mean()
    power = bootstrap_power(
        pilot, num_questions=num_questions, bar=bar, effect=effect, rng=seeded(), num_simulations=4_000
    )
    expected = normal_power(pilot.std(), num_questions, (0.1 if effect is None else effect) - bar)
    assert power == pytest.approx(expected, abs=tolerance(0.5, 4_000) + 0.01)  # 0.01: estimated spread, not known


def test_power_counts_copies_of_a_question_once() -> None:
    pilot = seeded().normal(size=200)
    once = bootstrap_power(pilot, num_questions=100, bar=-0.3, effect=0.0, rng=seeded(1))
    copies = bootstrap_power(
        np.repeat(pilot, 4), np.repeat(np.arange(200), 4), num_questions=100, bar=-0.3, effect=0.0, rng=seeded(1)
    )
    assert copies == once


def test_simulations_without_variation_do_not_meet_the_bar() -> None:
    pilot = [0.0] * 98 + [1.0, -1.0]
    nearly_always_constant = bootstrap_power(pilot, num_questions=2, bar=-0.015, rng=seeded())
    assert nearly_always_constant < 0.05
    required = required_num_questions(pilot, bar=-0.015, rng=seeded())
    assert required is not None
    assert required >= 200  # 3 / n > 0.015 below that even when no question differs


# Required number of questions


@pytest.mark.parametrize("power", [0.5, 0.8, 0.9])
@pytest.mark.parametrize(("bar", "effect"), [(-0.1, 0.0), (0.0, 0.2)])
def test_required_number_matches_the_normal_formula(power: float, bar: float, effect: float) -> None:
    pilot = seeded(3).normal(size=3_000)
    required = required_num_questions(pilot, bar=bar, effect=effect, power=power, rng=seeded(), num_simulations=4_000)
    expected = ((Z95 + NormalDist().inv_cdf(power)) * pilot.std() / (effect - bar)) ** 2
    assert required == pytest.approx(expected, rel=0.1)


def test_required_number_suffices_and_its_predecessor_does_not() -> None:
    pilot = seeded().normal(size=300)
    seed = int(seeded(6).integers(2**63))  # as the search draws it
    required = required_num_questions(pilot, bar=-0.3, effect=0.0, rng=seeded(6))
    assert required is not None
    reached, missed = (
        bootstrap_power(pilot, num_questions=n, bar=-0.3, effect=0.0, rng=np.random.default_rng((seed, n)))
        for n in (required, required - 1)
    )
    assert reached >= 0.9 > missed


@pytest.mark.parametrize(("effect", "max_num_questions"), [(-0.2, 500), (-0.3, 500), (0.0, 20), (0.0, 2)])
def test_no_number_is_given_when_none_suffices(effect: float, max_num_questions: int) -> None:
    pilot = seeded().normal(size=300)
    assert (
        required_num_questions(pilot, bar=-0.2, effect=effect, max_num_questions=max_num_questions, rng=seeded())
        is None
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"differences": []}, r"differences has shape \(0,\)"),
        ({"differences": [0.1] * 7, "questions": [1, 1, 1, 2, 2, 3, 4]}, "average 0.1; without variation"),
        ({"questions": [1]}, r"questions has shape \(1,\)"),
        ({"questions": [1, 1]}, "one question"),
        ({"num_questions": 1}, "num_questions: is 1; it must be at least 2"),
        ({"confidence": 95}, "confidence: is 95; it must be above 0 and below 1"),
        ({"bar": math.nan}, "bar is nan"),
    ],
)
def test_power_refuses_what_it_cannot_simulate(changed: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"differences": [1, 2], "num_questions": 5, "bar": 0.0, "rng": seeded()}
    with pytest.raises(ValueError, match=message):
        bootstrap_power(**(arguments | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"power": 1.0}, "power: is 1.0; it must be above 0 and below 1"),
        ({"max_num_questions": 1}, "max_num_questions: is 1; it must be at least 2"),
        ({"confidence": 0.0}, "confidence: is 0.0"),
        ({"differences": [3, 3]}, "without variation"),
    ],
)
def test_required_number_refuses_impossible_demands(changed: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"differences": [1, 2], "bar": 0.0, "rng": seeded()}
    with pytest.raises(ValueError, match=message):
        required_num_questions(**(arguments | changed))  # type: ignore[arg-type]
