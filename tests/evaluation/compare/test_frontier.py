"""What an accuracy costs on a sweep, by hand and by brute force over mixes of two points."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scaffolding_ext.evaluation.compare.sweeps import cost_at_accuracy


def test_between_two_points_the_line_is_taken() -> None:
    found = cost_at_accuracy([[0.5, 0.9, 0.7]], [[100, 300, 200]], [0.8])
    assert (found.cost[0], found.interpolated[0]) == (pytest.approx(250), True)


def test_nothing_is_extrapolated() -> None:
    found = cost_at_accuracy([[0.5, 0.9]] * 2, [[100, 300]] * 2, [0.4, 0.95])
    assert found.cost.tolist() == [100, math.inf]
    assert not found.interpolated.any()


def test_a_point_that_costs_more_for_less_is_passed_over() -> None:
    found = cost_at_accuracy([[0.6, 0.5, 0.9]], [[100, 150, 300]], [0.75])
    assert found.cost[0] == pytest.approx(200)  # on the line from the first to the third


def test_the_cheaper_of_two_equal_points_counts() -> None:
    found = cost_at_accuracy([[0.6, 0.6, 0.9]], [[200, 100, 300]], [0.6])
    assert (found.cost[0], found.interpolated[0]) == (100, False)


def test_no_other_neighbour_is_skipped() -> None:
    rng = np.random.default_rng(0)
    accuracy, cost = rng.random((500, 5)), rng.integers(1, 1000, (500, 5)).astype(float)
    wanted = rng.random(500)
    found = cost_at_accuracy(accuracy, cost, wanted)
    for row in range(500):
        frontier = sorted(
            (c, a)
            for c, a in zip(cost[row], accuracy[row], strict=True)
            if not any((d, -b) < (c, -a) and b >= a for d, b in zip(cost[row], accuracy[row], strict=True))
        )
        costs, levels = zip(*frontier, strict=True)
        if wanted[row] > levels[-1]:
            assert found.cost[row] == math.inf
        else:
            assert found.cost[row] == pytest.approx(np.interp(wanted[row], levels, costs))


@pytest.mark.parametrize(
    "shapes", [((2,), (2,), (1,)), ((1, 2), (1, 3), (1,)), ((1, 2), (1, 2), (2,)), ((0, 2), (0, 2), (0,))]
)
def test_shapes_that_do_not_fit_are_refused(shapes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match="shape"):
        cost_at_accuracy(*(np.zeros(shape) for shape in shapes))
