"""Orders of the samples are rotations, so that no sample is favoured."""

from __future__ import annotations

import numpy as np
import pytest

from scaffolding_ext.evaluation.tune.orders import draw_orders
from scaffolding_ext.evaluation.tune.replay import Replay
from tests.evaluation.tune.recorded import recording


@pytest.mark.parametrize(("num_questions", "num_samples"), [(3, 5), (30, 8), (20, 64)])
def test_each_sample_comes_at_each_place_equally_often(num_questions: int, num_samples: int) -> None:
    orders = draw_orders(num_questions, num_samples, np.random.default_rng(0))
    for question in range(num_questions):
        for place in range(num_samples):
            counts = np.bincount(orders[:, question, place], minlength=num_samples)
            assert counts.tolist() == [len(orders) // num_samples] * num_samples


def test_a_small_log_has_more_orders_and_a_large_one_no_more_work() -> None:
    rng = np.random.default_rng(0)
    numbers = [len(draw_orders(size, 8, rng)) for size in (20, 400, 3_000, 30_000)]
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[0] == 64
    assert [size * 8 * number <= 400_000 for size, number in zip((400, 3_000, 30_000), numbers[1:], strict=True)]


def test_few_orders_begin_with_different_samples() -> None:
    orders = draw_orders(2_000, 40, np.random.default_rng(0))
    assert 1 < len(orders) < 40
    assert all(len(set(orders[:, question, 0].tolist())) == len(orders) for question in range(50))
    assert all(sorted(order.tolist()) == list(range(40)) for order in orders[:, 0])


@pytest.mark.parametrize("num_questions", [20, 4_000])
def test_one_sample_is_exactly_the_mean_of_the_log(num_questions: int) -> None:
    found = Replay(recording(num_questions, 16))
    found.try_numbers()
    (one,) = (played for setting, played in found.played.items() if setting.num_samples == 1)
    samples = found.votes.samples
    np.testing.assert_allclose(one.right, samples.correct.mean(axis=1))
    np.testing.assert_allclose(one.costs["decoded"], samples.tokens.mean(axis=1))
    np.testing.assert_allclose(one.costs["critical"], samples.tokens.mean(axis=1))
    np.testing.assert_allclose(one.lost, found.full.right * (1 - one.right))


def test_the_vote_of_all_samples_does_not_move_with_the_seed() -> None:
    """Ties go to the sample that comes first; of two samples, each does so in half of the orders."""
    log = recording(20, 2, ability=0.5)
    found = [Replay(log, seed=seed).full.right for seed in range(3)]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
