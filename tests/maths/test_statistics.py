"""Error bars against closed forms, brute force and seeded simulations.

A Monte-Carlo share of `n` runs is held to 4 binomial standard errors, `4 * sqrt(p * (1 - p) / n)`: with a right
implementation a fresh seed would fail one check in 16,000.
"""

from __future__ import annotations

import itertools
import math
import tracemalloc
from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.maths.statistics import (
    Estimate,
    bootstrap_power,
    mcnemar_exact,
    paired_bootstrap,
    paired_bootstrap_ratio,
    required_num_questions,
    wilson_interval,
)

Floats = npt.NDArray[np.float64]

Z95 = NormalDist().inv_cdf(0.975)
CONFIDENCES = (0.5, 0.8, 0.9, 0.95)

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


@given(num_trials=st.integers(1, 10**6), share=st.floats(0, 1), confidence=confidences)
def test_wilson_ends_solve_the_score_equation(num_trials: int, share: float, confidence: float) -> None:
    num_successes = round(share * num_trials)
    interval = wilson_interval(num_successes, num_trials, confidence)
    observed = num_successes / num_trials
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    assert 0 <= interval.low <= observed <= interval.high <= 1
    for end in interval:
        assert (observed - end) ** 2 == pytest.approx(z * z * end * (1 - end) / num_trials, rel=1e-6, abs=1e-12)


@given(num_trials=st.integers(0, 1000), data=st.data(), confidence=confidences)
def test_wilson_mirrors_when_successes_and_failures_swap(
    num_trials: int, data: st.DataObject, confidence: float
) -> None:
    num_successes = data.draw(st.integers(0, num_trials))
    interval = wilson_interval(num_successes, num_trials, confidence)
    mirrored = wilson_interval(num_trials - num_successes, num_trials, confidence)
    assert (1 - mirrored.high, 1 - mirrored.low) == pytest.approx(interval, abs=1e-12)


def test_wilson_covers_at_its_nominal_level_on_average() -> None:
    num_trials = 40
    intervals = [wilson_interval(k, num_trials) for k in range(num_trials + 1)]
    shares = np.linspace(0.02, 0.98, 193)
    coverage = [  # exact, by enumeration of the binomial outcomes
        sum(
            math.comb(num_trials, k) * p**k * (1 - p) ** (num_trials - k)
            for k, interval in enumerate(intervals)
            if interval.low <= p <= interval.high
        )
        for p in map(float, shares)
    ]
    assert np.mean(coverage) == pytest.approx(0.95, abs=0.005)
    assert min(coverage) > 0.83  # the known dips near 0 and 1


@pytest.mark.parametrize(
    ("num_successes", "num_trials", "message"),
    [
        (3, 2, r"num_successes is 3 of num_trials 2"),
        (-1, 2, r"num_successes is -1; .* at least 0"),
        (0, -1, r"num_trials is -1; .* at least 0"),
        (0.5, 2, r"num_successes is 0\.5; .* integer"),
    ],
)
def test_wilson_refuses_impossible_counts(num_successes: int, num_trials: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wilson_interval(num_successes, num_trials)


# Paired bootstrap: the exact bootstrap distribution


def assert_are_quantiles(ends: Estimate, confidence: float, atoms: Floats, weights: Floats, num_resamples: int) -> None:
    """Each end is a quantile of the distribution of `atoms` with `weights`, give or take the resampling's tolerance."""
    for end, level in ((ends.low, (1 - confidence) / 2), (ends.high, (1 + confidence) / 2)):
        slack = tolerance(level, num_resamples)
        assert weights[atoms < end - 1e-9].sum() <= level + slack
        assert weights[atoms <= end + 1e-9].sum() >= level - slack


@pytest.mark.parametrize("confidence", CONFIDENCES)
@pytest.mark.parametrize("ratio", [False, True])
def test_interval_matches_every_resample_enumerated(ratio: bool, confidence: float) -> None:
    a = np.array([3.0, 1.5, 8.0, 2.0, 7.0, 1.0, 4.5])
    b = np.array([1.0, 2.5, 3.0, 4.0, 2.0, 2.0, 5.0])
    questions = np.array(["q1", "q2", "q2", "q3", "q4", "q1", "q2"])
    members = [np.flatnonzero(questions == name) for name in np.unique(questions)]
    atoms = []
    for draw in itertools.product(members, repeat=len(members)):
        drawn = np.concatenate(draw)
        atoms.append(a[drawn].sum() / b[drawn].sum() if ratio else np.mean(a[drawn] - b[drawn]))
    bootstrap = paired_bootstrap_ratio if ratio else paired_bootstrap
    estimate = bootstrap(a, b, questions, rng=seeded(), num_resamples=40_000, confidence=confidence)
    assert estimate.value == pytest.approx(a.sum() / b.sum() if ratio else np.mean(a - b))
    assert_are_quantiles(estimate, confidence, np.array(atoms), np.full(len(atoms), 1 / len(atoms)), 40_000)


@pytest.mark.parametrize("confidence", CONFIDENCES)
def test_interval_of_few_distinct_values_matches_the_binomial(confidence: float) -> None:
    num_questions, num_gains = 200, 30
    a = np.arange(num_questions) < num_gains
    estimate = paired_bootstrap(a, np.zeros(num_questions), rng=seeded(), num_resamples=40_000, confidence=confidence)
    share = num_gains / num_questions
    counts = np.arange(num_questions + 1)
    weights = np.array(
        [math.comb(num_questions, k) * share**k * (1 - share) ** (num_questions - k) for k in range(num_questions + 1)]
    )
    assert estimate.value == pytest.approx(share)
    assert_are_quantiles(estimate, confidence, counts / num_questions, weights, 40_000)


def test_large_samples_give_the_normal_interval() -> None:
    rng = seeded()
    differences = rng.normal(size=5_000)
    estimate = paired_bootstrap(differences, np.zeros(5_000), rng=rng)
    half_width = Z95 * differences.std() / math.sqrt(5_000)
    assert (estimate.high - estimate.low) / 2 == pytest.approx(half_width, rel=0.04)


def test_large_samples_give_the_delta_method_interval_of_a_ratio() -> None:
    rng = seeded()
    b = rng.gamma(4.0, 100.0, size=4_000)
    a = 0.7 * b + rng.normal(0, 20, size=4_000)
    estimate = paired_bootstrap_ratio(a, b, rng=rng)
    half_width = Z95 * np.std(a - estimate.value * b) / b.mean() / math.sqrt(4_000)
    assert (estimate.high - estimate.low) / 2 == pytest.approx(half_width, rel=0.04)


# Paired bootstrap: properties


@pytest.mark.parametrize("bootstrap", [paired_bootstrap, paired_bootstrap_ratio])
@settings(max_examples=60, deadline=None)
@given(samples=graded_samples(), seed=seeds, confidence=confidences)
def test_samples_may_come_in_any_order_and_questions_under_any_name(
    bootstrap: Callable[..., Estimate],
    samples: tuple[list[int], list[int], list[int]],
    seed: int,
    confidence: float,
) -> None:
    a, b, questions = map(np.array, samples)
    order = seeded(seed).permutation(len(a))
    names = [f"question {one}" for one in questions[order]]
    first = bootstrap(a, b, questions, rng=seeded(seed), num_resamples=50, confidence=confidence)
    second = bootstrap(a[order], b[order], names, rng=seeded(seed), num_resamples=50, confidence=confidence)
    assert first == second


@settings(max_examples=60, deadline=None)
@given(samples=graded_samples(), seed=seeds, confidence=confidences)
def test_interval_stays_within_the_questions(
    samples: tuple[list[int], list[int], list[int]], seed: int, confidence: float
) -> None:
    a, b, questions = map(np.array, samples)
    members = [questions == one for one in np.unique(questions)]
    mean = paired_bootstrap(a, b, questions, rng=seeded(seed), num_resamples=50, confidence=confidence)
    means = [np.mean(a[m] - b[m]) for m in members]
    assert min(means) - 1e-9 <= mean.low <= mean.high <= max(means) + 1e-9
    ratio = paired_bootstrap_ratio(a, b, questions, rng=seeded(seed), num_resamples=50, confidence=confidence)
    ratios = [a[m].sum() / b[m].sum() for m in members]
    assert min(ratios) - 1e-9 <= ratio.low <= ratio.high <= max(ratios) + 1e-9


@settings(max_examples=60, deadline=None)
@given(samples=graded_samples(), seed=seeds, doublings=st.integers(-4, 4))
def test_units_scale_the_mean_and_leave_the_ratio(
    samples: tuple[list[int], list[int], list[int]], seed: int, doublings: int
) -> None:
    a, b, questions = map(np.array, samples)
    scale = 2.0**doublings  # exact in floating point
    mean = paired_bootstrap(a, b, questions, rng=seeded(seed), num_resamples=50)
    scaled_mean = paired_bootstrap(scale * a, scale * b, questions, rng=seeded(seed), num_resamples=50)
    assert scaled_mean == pytest.approx(tuple(scale * end for end in mean))
    ratio = paired_bootstrap_ratio(a, b, questions, rng=seeded(seed), num_resamples=50)
    scaled_ratio = paired_bootstrap_ratio(scale * a, scale * b, questions, rng=seeded(seed), num_resamples=50)
    assert scaled_ratio == pytest.approx(ratio)


def test_copies_of_a_question_add_nothing_when_named_and_narrow_the_interval_when_not() -> None:
    differences = seeded().normal(size=100)
    copies, zeros, questions = np.repeat(differences, 4), np.zeros(400), np.repeat(np.arange(100), 4)
    once = paired_bootstrap(differences, np.zeros(100), rng=seeded(1))
    named = paired_bootstrap(copies, zeros, questions, rng=seeded(1))
    unnamed = paired_bootstrap(copies, zeros, rng=seeded(1))
    assert named == pytest.approx(once)
    assert unnamed.high - unnamed.low == pytest.approx((once.high - once.low) / 2, rel=0.1)


def test_same_seed_gives_same_interval_and_another_seed_another() -> None:
    a, b = seeded().normal(size=(2, 50))
    first, again, other = (paired_bootstrap(a, b, rng=seeded(s), num_resamples=200) for s in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("num_distinct", [2, 400, 20_000])
def test_memory_is_bounded(num_distinct: int) -> None:
    a = (np.arange(20_000) % num_distinct).astype(float)
    tracemalloc.start()
    paired_bootstrap(a, np.zeros_like(a), rng=seeded(), num_resamples=2_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 * 2**20  # all draws at once would take 320 MB


# Paired bootstrap: coverage


def test_intervals_cover_at_their_nominal_level_only_with_questions() -> None:
    """400 evaluations of 60 questions with 3 alike samples each; 0.95 is held to 4 binomial standard errors, 0.044."""
    rng = seeded(7)
    num_runs, num_questions, num_epochs = 400, 60, 3
    true_mean, true_ratio = 0.1, 0.8
    covered = {"mean": 0, "ratio": 0, "mean without questions": 0}
    questions = np.repeat(np.arange(num_questions), num_epochs)
    for _ in range(num_runs):
        ability = np.repeat(rng.normal(true_mean, 1.0, num_questions), num_epochs)
        difference = ability + rng.normal(0, 0.5, len(questions))
        length = np.repeat(rng.gamma(4.0, 250.0, num_questions), num_epochs)
        saving = np.repeat(rng.normal(true_ratio, 0.2, num_questions), num_epochs)
        estimates = {
            "mean": (true_mean, paired_bootstrap(difference, 0 * difference, questions, rng=rng, num_resamples=1_000)),
            "ratio": (
                true_ratio,
                paired_bootstrap_ratio(saving * length, length, questions, rng=rng, num_resamples=1_000),
            ),
            "mean without questions": (
                true_mean,
                paired_bootstrap(difference, 0 * difference, rng=rng, num_resamples=1_000),
            ),
        }
        for name, (truth, estimate) in estimates.items():
            covered[name] += estimate.low <= truth <= estimate.high
    assert covered["mean"] / num_runs == pytest.approx(0.95, abs=tolerance(0.95, num_runs))
    assert covered["ratio"] / num_runs == pytest.approx(0.95, abs=tolerance(0.95, num_runs))
    assert covered["mean without questions"] / num_runs < 0.85


# McNemar


@pytest.mark.parametrize(
    ("only_a", "only_b", "p_value"),
    [(0, 0, 1.0), (5, 5, 1.0), (0, 5, 0.0625), (1, 9, 0.021484375), (10, 2, 0.03857421875)],
)
def test_mcnemar_matches_exact_values(only_a: int, only_b: int, p_value: float) -> None:
    a = [1] * only_a + [0] * only_b + [1, 0]
    b = [0] * only_a + [1] * only_b + [1, 0]
    assert mcnemar_exact(a, b) == (only_a, only_b, p_value)


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


def test_mcnemar_nears_the_chi_squared_test_on_large_counts() -> None:
    only_a, only_b = 5_150, 4_850
    a = np.arange(only_a + only_b) < only_a
    continuity_corrected = (only_a - only_b - 1) / math.sqrt(only_a + only_b)
    assert mcnemar_exact(a, ~a).p_value == pytest.approx(2 * NormalDist().cdf(-continuity_corrected), rel=1e-2)


# Power


def normal_power(sd: float, num_questions: int, distance: float) -> float:
    return NormalDist().cdf(distance * math.sqrt(num_questions) / sd - Z95)


@pytest.mark.parametrize("num_questions", [50, 150, 400])
@pytest.mark.parametrize(("bar", "effect"), [(-0.1, 0.0), (0.0, 0.15), (-0.05, None)])
def test_power_matches_the_normal_formula(num_questions: int, bar: float, effect: float | None) -> None:
    pilot = seeded(3).normal(0.1, 1.0, size=3_000)
    pilot += 0.1 - pilot.mean()
    power = bootstrap_power(
        pilot, num_questions=num_questions, bar=bar, effect=effect, rng=seeded(), num_simulations=4_000
    )
    expected = normal_power(pilot.std(), num_questions, (0.1 if effect is None else effect) - bar)
    assert power == pytest.approx(expected, abs=tolerance(0.5, 4_000) + 0.01)  # 0.01: estimated spread, not known


def test_power_of_questions_with_unequal_numbers_of_samples_matches_the_ratio_formula() -> None:
    rng = seeded(4)
    sizes = rng.integers(1, 9, size=1_500)
    questions = np.repeat(np.arange(1_500), sizes)
    pilot = rng.normal(size=1_500)[questions] + rng.normal(0, 0.5, size=len(questions))
    residuals = np.bincount(questions, weights=pilot - pilot.mean())
    spread = float(np.std(residuals) / sizes.mean())
    power = bootstrap_power(
        pilot, questions, num_questions=300, bar=-0.2, effect=0.0, rng=seeded(), num_simulations=4_000
    )
    assert power == pytest.approx(normal_power(spread, 300, 0.2), abs=tolerance(0.5, 4_000) + 0.01)


def test_power_foretells_what_the_bootstrap_finds() -> None:
    """Fresh evaluations of the pilot's population, 300 of them, held to 4 binomial standard errors."""
    bar, num_runs, num_questions, num_epochs = -0.1, 300, 150, 3

    def evaluate(num: int, rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
        ease = rng.beta(2, 1, size=(num, 1))
        a, b = (rng.random((2, num, num_epochs)) < ease).astype(float)
        return a.ravel(), b.ravel(), np.repeat(np.arange(num), num_epochs)

    rng = seeded(5)
    a, b, questions = evaluate(5_000, rng)
    power = bootstrap_power(
        a - b, questions, num_questions=num_questions, bar=bar, effect=0.0, rng=rng, num_simulations=4_000
    )
    met = 0
    for _ in range(num_runs):
        a, b, questions = evaluate(num_questions, rng)
        met += paired_bootstrap(a, b, questions, rng=rng, num_resamples=1_000).low > bar
    assert 0.5 < power < 0.99
    assert met / num_runs == pytest.approx(power, abs=tolerance(power, num_runs))


def test_power_counts_copies_of_a_question_once() -> None:
    pilot = seeded().normal(size=200)
    once = bootstrap_power(pilot, num_questions=100, bar=-0.3, effect=0.0, rng=seeded(1))
    copies = bootstrap_power(
        np.repeat(pilot, 4), np.repeat(np.arange(200), 4), num_questions=100, bar=-0.3, effect=0.0, rng=seeded(1)
    )
    assert copies == once


@settings(max_examples=60, deadline=None)
@given(
    pilot=st.lists(st.integers(-5, 5), min_size=2, max_size=60).filter(lambda d: len(set(d)) > 1),
    num_questions=st.integers(2, 300),
    bars=st.tuples(st.integers(-8, 8), st.integers(-8, 8)),
    seed=seeds,
)
def test_power_is_a_share_that_falls_with_the_bar_and_sees_only_its_distance_from_the_effect(
    pilot: list[int], num_questions: int, bars: tuple[int, int], seed: int
) -> None:
    def power(bar: float, effect: float) -> float:
        return bootstrap_power(
            pilot, num_questions=num_questions, bar=bar, effect=effect, rng=seeded(seed), num_simulations=100
        )

    low, high = sorted(bars)
    assert 1 >= power(low, 0) >= power(high, 0) >= 0
    assert power(low + 1024.5, 1024) == pytest.approx(power(low + 0.5, 0), abs=0.01)


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


def test_required_number_is_reproducible_and_shrinks_with_the_demands() -> None:
    pilot = seeded().normal(size=300)

    def required(**settings: float) -> int:
        arguments = {"bar": -0.2, "effect": 0.0, "power": 0.9, "confidence": 0.95} | settings
        found = required_num_questions(pilot, rng=seeded(1), **arguments)  # type: ignore[arg-type]
        assert found is not None
        return found

    assert required() == required()
    assert required() > max(required(bar=-0.4), required(effect=0.1), required(power=0.6), required(confidence=0.8))


@pytest.mark.parametrize(("effect", "max_num_questions"), [(-0.2, 500), (-0.3, 500), (0.0, 20), (0.0, 2)])
def test_no_number_is_given_when_none_suffices(effect: float, max_num_questions: int) -> None:
    pilot = seeded().normal(size=300)
    assert (
        required_num_questions(pilot, bar=-0.2, effect=effect, max_num_questions=max_num_questions, rng=seeded())
        is None
    )


def test_largest_number_is_considered() -> None:
    pilot = seeded().normal(size=300)
    required = required_num_questions(pilot, bar=-0.2, effect=0.0, rng=seeded(2))
    assert required is not None
    assert required_num_questions(pilot, bar=-0.2, effect=0.0, max_num_questions=required, rng=seeded(2)) == required


# Refusals


@pytest.mark.parametrize("bootstrap", [paired_bootstrap, paired_bootstrap_ratio])
@pytest.mark.parametrize(
    ("a", "b", "questions", "message"),
    [
        ([1, 2, 3], [1, 2], None, r"a has 3 entries and b 2; .* paired"),
        ([], [], None, r"a has shape \(0,\); .* at least one"),
        ([[1, 2]], [1, 2], None, r"a has shape \(1, 2\)"),
        (3.0, 3.0, None, r"a has shape \(\)"),
        ([1, 2], [1, math.nan], None, r"b\[1\] is nan; .* finite"),
        ([math.inf, 2], [1, 2], None, r"a\[0\] is inf"),
        ([1, None], [1, 2], None, r"a has dtype object"),
        (["1", "2"], [1, 2], None, r"a has dtype <U1"),
        ([1, 2], [1, 2], [1], r"questions has shape \(1,\); .* 2 samples"),
        ([1, 2], [1, 2], [1.0, math.nan], r"questions has dtype float64"),
        ([1, 2], [1, 2], ["q", None], r"questions has dtype object"),
        ([1, 2], [1, 2], ["q", "q"], r"all 2 samples are of one question, q"),
        ([1], [1], None, r"one question"),
    ],
)
def test_bootstraps_refuse_malformed_samples(
    bootstrap: Callable[..., Estimate],
    a: Sequence[object],
    b: Sequence[object],
    questions: Sequence[object] | None,
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        bootstrap(a, b, questions, rng=seeded())


def test_question_names_may_be_an_object_column() -> None:
    names = np.array(["x", "x", "y", "z"], dtype=object)
    by_name = paired_bootstrap([1, 2, 3, 5], [0, 0, 0, 1], names, rng=seeded())
    assert by_name == paired_bootstrap([1, 2, 3, 5], [0, 0, 0, 1], [0, 0, 1, 2], rng=seeded())


@pytest.mark.parametrize("b", [[1, 2, 0, 0], [1, 2, 3, -3], [1, 2, -1, -1]])
def test_ratio_refuses_a_denominator_that_a_resample_could_bring_to_zero(b: list[int]) -> None:
    with pytest.raises(ValueError, match=r"b totals -?\d on question second; .* above 0"):
        paired_bootstrap_ratio([1, 1, 1, 1], b, ["first", "first", "second", "second"], rng=seeded())


def test_ratio_takes_a_zero_within_a_question_that_has_more() -> None:
    estimate = paired_bootstrap_ratio([1, 1, 1], [2, 0, 1], ["first", "first", "second"], rng=seeded())
    assert estimate.value == 1


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0, -0.5, math.nan])
@pytest.mark.parametrize(
    "call",
    [
        lambda c: wilson_interval(1, 2, c),
        lambda c: paired_bootstrap([1, 2], [1, 1], rng=seeded(), confidence=c),
        lambda c: paired_bootstrap_ratio([1, 2], [1, 1], rng=seeded(), confidence=c),
        lambda c: bootstrap_power([1, 2], num_questions=5, bar=0, rng=seeded(), confidence=c),
        lambda c: required_num_questions([1, 2], bar=0, rng=seeded(), confidence=c),
    ],
)
def test_confidence_must_be_a_share(call: Callable[[float], object], confidence: float) -> None:
    with pytest.raises(ValueError, match=r"confidence is .* between 0 and 1"):
        call(confidence)


@pytest.mark.parametrize("bootstrap", [paired_bootstrap, paired_bootstrap_ratio])
@pytest.mark.parametrize("num_resamples", [0, -5, 1.5])
def test_bootstraps_refuse_no_resamples(bootstrap: Callable[..., Estimate], num_resamples: int) -> None:
    with pytest.raises(ValueError, match="num_resamples is .* at least 1"):
        bootstrap([1, 2], [1, 1], rng=seeded(), num_resamples=num_resamples)


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


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"differences": []}, r"differences has shape \(0,\)"),
        ({"differences": [1, math.nan]}, r"differences\[1\] is nan"),
        ({"differences": [0.1] * 7, "questions": [1, 1, 1, 2, 2, 3, 4]}, "average 0.1; without variation"),
        ({"differences": [0, 0]}, "average 0; without variation"),
        ({"questions": [1]}, r"questions has shape \(1,\)"),
        ({"questions": [1, 1]}, "one question"),
        ({"num_questions": 1}, "num_questions is 1; it must be at least 2"),
        ({"num_simulations": 0}, "num_simulations is 0; it must be at least 1"),
        ({"bar": math.nan}, "bar is nan"),
        ({"effect": math.inf}, "effect inf"),
    ],
)
def test_power_refuses_what_it_cannot_simulate(changed: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"differences": [1, 2], "num_questions": 5, "bar": 0.0, "rng": seeded()}
    with pytest.raises(ValueError, match=message):
        bootstrap_power(**(arguments | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"power": 1.0}, "power is 1.0; it must lie strictly between 0 and 1"),
        ({"power": 90}, "power is 90"),
        ({"max_num_questions": 1}, "max_num_questions is 1; it must be at least 2"),
        ({"differences": [3, 3]}, "without variation"),
    ],
)
def test_required_number_refuses_impossible_demands(changed: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"differences": [1, 2], "bar": 0.0, "rng": seeded()}
    with pytest.raises(ValueError, match=message):
        required_num_questions(**(arguments | changed))  # type: ignore[arg-type]
