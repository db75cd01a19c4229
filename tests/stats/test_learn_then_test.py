"""Learn then test: p-values by hand, the two ways of testing, and the guarantee by simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from scaffolding_ext.stats.learn_then_test import (
    fixed_sequence,
    hoeffding_bentkus,
    learn_then_test,
    pareto_sequence,
    questions_needed,
)


def test_without_a_loss_the_p_value_is_that_of_no_loss_in_n_questions():
    # Hoeffding: exp(-n log(1 / (1 - a))) = (1 - a)^n; Bentkus has a factor e on the same
    assert hoeffding_bentkus(0.0, 100, 0.05) == pytest.approx(0.95**100)


@pytest.mark.parametrize(("num_losses", "num", "level", "smaller"), [(1, 10, 0.5, 0), (5, 100, 0.2, 1)])
def test_the_smaller_of_two_bounds_by_hand(num_losses, num, level, smaller):
    mean = num_losses / num
    hoeffding = math.exp(-num * (mean * math.log(mean / level) + (1 - mean) * math.log((1 - mean) / (1 - level))))
    tail = sum(math.comb(num, k) * level**k * (1 - level) ** (num - k) for k in range(num_losses + 1))
    bounds = [hoeffding, math.e * tail]
    assert bounds[smaller] == min(bounds)
    assert hoeffding_bentkus(mean, num, level) == pytest.approx(bounds[smaller])


def test_a_mean_at_the_level_or_above_it_tells_nothing():
    assert hoeffding_bentkus([0.2, 0.3, 1.0], 50, 0.2).tolist() == [1.0, 1.0, 1.0]


def test_a_mean_that_was_rounded_up_counts_as_the_losses_that_it_is():
    assert 100 * np.mean([1.0] * 7 + [0.0] * 93) > 7  # in floating point
    assert hoeffding_bentkus(0.07, 100, 0.2) <= math.e * binom.cdf(7, 100, 0.2)


@given(st.integers(1, 400), st.floats(0.01, 0.99), st.floats(0, 1))
def test_more_losses_never_make_it_surer(num_questions, level, mean):
    p_values = hoeffding_bentkus([mean, min(1.0, mean + 0.05)], num_questions, level)
    assert 0 <= p_values[0] <= p_values[1] + 1e-12 <= 1 + 1e-12


@pytest.mark.parametrize(("num_questions", "level"), [(20, 0.1), (20, 0.5), (200, 0.05)])
def test_the_p_value_is_valid(num_questions, level):
    # P(p <= u) <= u where the risk is just the level, exactly: over all numbers of losses
    num_losses = np.arange(num_questions + 1)
    chance = binom.pmf(num_losses, num_questions, level)
    p_values = hoeffding_bentkus(num_losses / num_questions, num_questions, level)
    for u in np.linspace(0.01, 0.99, 50):
        assert chance[p_values <= u].sum() <= u + 1e-12


def test_a_sequence_ends_at_the_first_that_fails():
    assert fixed_sequence([0.01, 0.1, 0.2, 0.01], 0.1) == 2
    assert fixed_sequence([0.2, 0.01], 0.1) == 0
    assert fixed_sequence([0.01, 0.02], 0.1) == 2
    assert fixed_sequence([], 0.1) == 0


def test_only_settings_that_none_is_better_than_are_tested_the_safest_first():
    risk, cost = [0.1, 0.0, 0.2, 0.15, 0.1], [5, 9, 1, 6, 4]
    assert pareto_sequence(risk, cost) == [1, 4, 2]


def bernoulli(rng, num_questions, risks):
    return (rng.random((num_questions, 1)) < risks).astype(float)  # the cheap lose where the dear do, and elsewhere


def test_the_cheapest_that_holds_is_chosen_and_none_where_none_does():
    rng = np.random.default_rng(0)
    risks, costs = np.array([0.0, 0.01, 0.3, 0.5]), np.tile([4.0, 3.0, 2.0, 1.0], (800, 1))
    found = learn_then_test(bernoulli(rng, 800, risks), costs, 0.05, 0.1, rng)
    assert found.chosen == 1
    assert sorted(found.passed) == [0, 1]
    assert found.num_questions == 560
    none = learn_then_test(bernoulli(rng, 800, risks + 0.2), costs, 0.05, 0.1, rng)
    assert none.chosen is None
    assert none.passed == []


def test_the_guarantee_holds_by_simulation():
    # 12 settings, the cheaper the riskier; how often is one chosen whose risk is above the level?
    num_runs, delta, level = 600, 0.2, 0.1
    rng = np.random.default_rng(1)
    risks = np.linspace(0.06, 0.17, 12)
    costs = np.tile(np.linspace(12.0, 1.0, 12), (150, 1))
    found = [learn_then_test(bernoulli(rng, 150, risks), costs, level, delta, rng) for _ in range(num_runs)]
    num_broken = sum(each.chosen is not None and risks[each.chosen] > level for each in found)
    assert any(each.chosen is not None for each in found)
    assert num_broken <= binom.ppf(0.999, num_runs, delta)


def test_the_questions_that_test_have_no_say_in_the_order():
    """200 settings just above the level: the one that looks safest on the testing questions would often pass."""
    num_runs, delta = 200, 0.1
    rng, costs = np.random.default_rng(2), np.ones((150, 200))
    found = [
        learn_then_test((rng.random(costs.shape) < 0.105).astype(float), costs, 0.1, delta, rng)
        for _ in range(num_runs)
    ]
    assert sum(each.chosen is not None for each in found) <= binom.ppf(0.999, num_runs, delta)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"losses": [[0.0], [0.0], [0.0]]}, "shape"),
        ({"losses": [[2.0], [0.0]]}, "scale them to"),
        ({"level": 1.0}, "level"),
        ({"delta": 0.0}, "delta"),
    ],
)
def test_what_cannot_be_tested_is_refused(change, told):
    given = {"losses": [[0.0], [0.0]], "costs": [[1.0], [1.0]], "level": 0.1, "delta": 0.1} | change
    with pytest.raises(ValueError, match=told):
        learn_then_test(rng=np.random.default_rng(0), **given)


@pytest.mark.parametrize(("level", "delta"), [(0.05, 0.1), (0.01, 0.1), (0.2, 0.05), (0.5, 0.5)])
def test_as_many_questions_as_needed_let_a_setting_pass_and_one_fewer_does_not(level, delta):
    needed = questions_needed(level, delta)
    for num, passes in ((needed, True), (needed - 1, False)):
        if num >= 2:
            losses = np.zeros((num, 3))
            tested = learn_then_test(losses, losses + 1, level, delta, np.random.default_rng(0))
            assert (tested.chosen is not None) is passes
