"""Error bars against closed forms, brute force and seeded simulations.

A Monte-Carlo share of `n` runs is held to 4 binomial standard errors, `4 * sqrt(p * (1 - p) / n)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, bootstrap

from scaffolding_ext.stats.intervals import (
    bootstrap_quotients,
    mcnemar_exact,
    paired_bootstrap,
    share_of_questions,
    wilson_interval,
)

seeds = st.integers(0, 2**32 - 1)
confidences = st.floats(0.01, 0.999)


def seeded(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def tolerance(share: float, num_runs: int) -> float:
    """Four binomial standard errors."""
    return 4 * math.sqrt(share * (1 - share) / num_runs)


@st.composite
def graded_samples(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Positive integer values of two systems and question ids, at least two questions, in any order."""
    num_samples = draw(st.integers(2, 40))
    values = st.lists(st.integers(1, 1000), min_size=num_samples, max_size=num_samples)
    ids = draw(
        st.lists(st.integers(0, 6), min_size=num_samples, max_size=num_samples).filter(lambda q: len(set(q)) > 1)
    )
    return draw(values), draw(values), ids


# Wilson interval


@pytest.mark.parametrize(
    ("num_successes", "num_trials", "low", "high"),
    [(8, 10, 0.4901625, 0.9433178), (0, 10, 0.0, 0.2775328), (10, 10, 0.7224672, 1.0), (0, 0, 0.0, 1.0)],
)
def test_wilson_matches_published_values(num_successes: int, num_trials: int, low: float, high: float) -> None:
    assert wilson_interval(num_successes, num_trials) == pytest.approx((low, high), abs=1e-7)


@given(num_trials=st.integers(1, 10**5), share=st.floats(0, 1), confidence=confidences)
def test_wilson_is_that_of_scipy(num_trials: int, share: float, confidence: float) -> None:
    num_successes = round(share * num_trials)
    theirs = binomtest(num_successes, num_trials).proportion_ci(confidence, method="wilson")
    assert wilson_interval(num_successes, num_trials, confidence) == pytest.approx(tuple(theirs), abs=1e-12)


@given(right=st.lists(st.booleans(), min_size=1, max_size=60), confidence=confidences)
def test_with_one_sample_a_question_a_share_has_wilsons_interval(right: list[bool], confidence: float) -> None:
    found = share_of_questions(right, np.ones(len(right)), confidence)
    wilson = wilson_interval(sum(right), len(right), confidence)
    assert found == pytest.approx((sum(right) / len(right), *wilson), abs=1e-12)


def test_copies_of_a_sample_do_not_narrow_the_interval_of_a_share() -> None:
    right = np.array([1, 0, 1, 1, 0, 1, 1])
    assert share_of_questions(4 * right, np.full(7, 4.0)) == pytest.approx(share_of_questions(right, np.ones(7)))
    assert share_of_questions([8], [8]) == pytest.approx((1.0, *wilson_interval(1, 1)))
    independent = share_of_questions([2, 2, 2], [4, 4, 4])  # no variance between questions: all samples count
    assert independent == pytest.approx((0.5, *wilson_interval(6, 12)))


def test_the_interval_of_a_share_covers_at_its_nominal_level_where_samples_of_a_question_are_alike() -> None:
    rng, num_runs, num_questions, num_epochs = seeded(), 400, 60, 8
    covered = []
    for _ in range(num_runs):
        chances = rng.beta(1.4, 0.6, num_questions)  # of mean .7
        found = share_of_questions(rng.binomial(num_epochs, chances), np.full(num_questions, num_epochs))
        covered.append(found.low <= 0.7 <= found.high)
    assert abs(np.mean(covered) - 0.95) < tolerance(0.95, num_runs)


def test_above_ten_thousand_questions_the_interval_is_the_normal_one_near_the_percentiles() -> None:
    rng = seeded(4)
    above, below = rng.exponential(size=(10_001, 1)), 1 + rng.random((10_001, 1))
    (normal,) = bootstrap_quotients(above, below, rng=seeded())
    (percentiles,) = bootstrap_quotients(above[1:], below[1:], rng=seeded(), num_resamples=4000)
    width = normal.high - normal.low
    assert normal == pytest.approx(percentiles, abs=0.05 * width)


def test_the_bootstrap_is_that_of_scipy() -> None:
    above, below = seeded(1).random(40), 1 + seeded(2).random(40)

    def quotient(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
        return np.asarray(a.sum(axis=axis) / b.sum(axis=axis))

    theirs = bootstrap(
        (above, below), quotient, paired=True, vectorized=True, method="percentile", n_resamples=2000, rng=seeded(3)
    )
    (ours,) = bootstrap_quotients(above[:, None], below[:, None], rng=seeded(3), num_resamples=2000)
    assert ours[1:] == pytest.approx(tuple(theirs.confidence_interval), rel=1e-12)


@pytest.mark.parametrize(
    ("num_successes", "num_trials", "message"),
    [
        (3, 2, r"num_successes is 3 of num_trials 2"),
        (-1, 2, r"num_successes: is -1; .* at least 0"),
        (0, -1, r"num_trials: is -1; .* at least 0"),
        (0.5, 2, r"num_successes: is 0\.5; .* whole number"),
    ],
)
def test_wilson_refuses_impossible_counts(num_successes: int, num_trials: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wilson_interval(num_successes, num_trials)


# Paired bootstrap


@settings(max_examples=60, deadline=None)
@given(samples=graded_samples(), seed=seeds, confidence=confidences)
def test_samples_may_come_in_any_order_and_questions_under_any_name(
    samples: tuple[list[int], list[int], list[int]],
    seed: int,
    confidence: float,
) -> None:
    a, b, questions = map(np.array, samples)
    order = seeded(seed).permutation(len(a))
    names = [f"question {one}" for one in questions[order]]
    first = paired_bootstrap(a, b, questions, rng=seeded(seed), num_resamples=50, confidence=confidence)
    second = paired_bootstrap(a[order], b[order], names, rng=seeded(seed), num_resamples=50, confidence=confidence)
    assert first == second


def test_copies_of_a_question_add_nothing_when_named_and_narrow_the_interval_when_not() -> None:
    differences = seeded().normal(size=100)
    copies, zeros, questions = np.repeat(differences, 4), np.zeros(400), np.repeat(np.arange(100), 4)
    once = paired_bootstrap(differences, np.zeros(100), rng=seeded(1))
    named = paired_bootstrap(copies, zeros, questions, rng=seeded(1))
    unnamed = paired_bootstrap(copies, zeros, rng=seeded(1))
    assert named == pytest.approx(once)
    assert unnamed.high - unnamed.low == pytest.approx((once.high - once.low) / 2, rel=0.1)


# McNemar


@settings(deadline=None)
@given(pairs=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_mcnemar_matches_enumeration(pairs: list[tuple[bool, bool]]) -> None:
    a, b = (np.array(column) for column in zip(*pairs, strict=True))
    result = mcnemar_exact(a, b)
    n = result.only_a + result.only_b
    assert (result.only_a, result.only_b) == (int(np.sum(a & ~b)), int(np.sum(~a & b)))
    at_least_as_far = (k for k in range(n + 1) if abs(2 * k - n) >= abs(result.only_a - result.only_b))
    assert result.p_value == pytest.approx(sum(math.comb(n, k) for k in at_least_as_far) / 2**n)
    assert mcnemar_exact(b, a) == (result.only_b, result.only_a, result.p_value)


# Refusals


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0, -0.5, math.nan])
@pytest.mark.parametrize(
    "call",
    [
        lambda c: wilson_interval(1, 2, c),
        lambda c: paired_bootstrap([1, 2], [1, 1], rng=seeded(), confidence=c),
    ],
)
def test_confidence_must_be_a_share(call: Callable[[float], object], confidence: float) -> None:
    with pytest.raises(ValueError, match=r"confidence: is .* above 0 and below 1"):
        call(confidence)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([1, 0], [1], "a_correct has 2 entries and b_correct 1"),
        ([], [], "a_correct has shape"),
        ([1, 0], [1, 0.5], "b_correct has an entry that is neither 0 nor 1"),
        ([2, 0], [1, 0], "a_correct has an entry that is neither 0 nor 1"),
        ([math.nan, 0], [1, 0], r"a_correct\[0\] is nan"),
    ],
)
def test_mcnemar_refuses_what_is_no_outcome(a: list[float], b: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mcnemar_exact(a, b)


def test_quotients_of_one_call_share_their_resamples() -> None:
    rng = np.random.default_rng(3)
    tokens, ours = rng.integers(1, 500, 60).astype(float), rng.integers(1, 300, 60).astype(float)
    same, doubled, apart = bootstrap_quotients(
        np.column_stack((ours, 2 * ours, tokens)), np.column_stack((tokens, tokens, ours)), rng=np.random.default_rng(0)
    )
    assert doubled == pytest.approx([2 * value for value in same])
    assert apart == pytest.approx([1 / same.value, 1 / same.high, 1 / same.low], rel=1e-3)


def test_a_resample_without_tokens_makes_the_upper_end_infinite() -> None:
    (estimate,) = bootstrap_quotients([[1.0], [1.0]], [[4.0], [0.0]], rng=np.random.default_rng(0))
    assert (estimate.value, estimate.high) == (0.5, math.inf)


@pytest.mark.parametrize("below", [[[1.0]], [[0.0], [0.0]], [[1.0], [math.inf]]])
def test_quotients_refuse_what_they_cannot_divide_by(below: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="numerators"):
        bootstrap_quotients([[1.0]] * len(below), below, rng=np.random.default_rng(0))
