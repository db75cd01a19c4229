"""Curves from measurement, and whether they say where they are not to be trusted."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import curve_fit

from scaffolding_ext.controllers.budgets.queueing.fits import AccuracyFit, fit_accuracy, fit_monotone, fit_service
from scaffolding_ext.errors import ConfigError

BUDGETS = np.array([0, 50, 100, 200, 400, 800])


def measured(
    A: float, b: float, D: float, answers: int, seed: int = 0, budgets: np.ndarray = BUDGETS, resamples: int = 150
) -> AccuracyFit:
    rng = np.random.default_rng(seed)
    right = rng.binomial(answers, D + A * (1 - np.exp(-b * budgets)))
    return fit_accuracy(budgets, right, np.full(len(budgets), answers), rng, resamples)


def test_the_curve_is_the_least_squares_one() -> None:
    right = np.array([110, 260, 330, 395, 420, 433])
    fit = fit_accuracy(BUDGETS, right, np.full(6, 500), np.random.default_rng(0))
    (A, b, D), _ = curve_fit(lambda x, A, b, D: D + A * (1 - np.exp(-b * x)), BUDGETS, right / 500, p0=(0.5, 0.01, 0.2))
    assert (fit.A.value, fit.b.value, fit.D.value) == pytest.approx((A, b, D), rel=0.03)
    assert fit.at(BUDGETS) == pytest.approx(D + A * (1 - np.exp(-b * BUDGETS)), abs=0.003)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    fits = [measured(0.6, 0.008, 0.2, 200, seed) for seed in range(30)]
    for name, truth in (("A", 0.6), ("b", 0.008), ("D", 0.2)):
        held = sum(getattr(fit, name).low <= truth <= getattr(fit, name).high for fit in fits)
        assert held >= 24, name  # of 30 at 95 %: fewer has a chance of 1 in 1,000
    assert sum(bool(fit.warnings) for fit in fits) <= 3


def test_parameters_stay_within_their_bounds() -> None:
    for right in ([0, 0, 0, 0, 0, 1], [100] * 6, [100, 80, 60, 40, 20, 0], [0, 90, 100, 100, 100, 100]):
        fit = fit_accuracy(BUDGETS, right, np.full(6, 100), np.random.default_rng(0), 50)
        assert 0 <= fit.A.value <= 1
        assert 0 <= fit.D.value <= 1
        assert fit.A.value + fit.D.value <= 1 + 1e-12
        assert fit.b.value > 0


def test_s_shaped_accuracy_is_said_and_kept_by_the_monotone_fit() -> None:
    budgets, right, answers = [64, 96, 128, 160], [64, 212, 336, 364], np.full(4, 400)
    fit = fit_accuracy(budgets, right, answers, np.random.default_rng(0))
    assert fit.largest_miss > 0.1
    assert any("S-shaped" in warning for warning in fit.warnings)
    assert fit_monotone(budgets, right, answers) == pytest.approx([0.16, 0.53, 0.84, 0.91])


def test_a_monotone_fit_pools_what_falls() -> None:
    fitted = fit_monotone([1, 2, 3, 4], [10, 60, 20, 90], [100, 300, 100, 100])
    assert fitted == pytest.approx([0.1, 0.2, 0.2, 0.9])  # (60 + 20) of (300 + 100)
    with pytest.raises(ConfigError, match="they must increase"):
        fit_monotone([2, 1], [1, 2], [3, 3])


@pytest.mark.parametrize(
    ("fit", "says"),
    [
        (
            lambda: measured(0.6, 0.008, 0.2, 300, budgets=np.array([400, 600, 800, 1200])),
            "from 400 to 1200 do not determine A and b",
        ),
        (lambda: measured(0.6, 0.008, 0.2, 300, budgets=np.array([0, 5, 10, 15])), "do not determine"),
        (lambda: measured(0.0, 0.008, 0.2, 300), "A and b: accuracy does not clearly grow"),
        (
            lambda: measured(0.9, 0.02, 0.0, 40, budgets=np.array([100, 200, 400, 800])),
            "do not determine b .* smaller budgets",
        ),
        (lambda: measured(0.6, 0.003, 0.2, 60, 1, np.array([0, 20, 50, 100])), "do not determine b .* larger budgets"),
        (lambda: measured(0.6, 0.008, 0.2, 12), "12 answers"),
        (lambda: measured(0.6, 0.008, 0.2, 300, budgets=np.array([0, 100, 400])), "a fourth"),
    ],
)
def test_what_the_data_cannot_tell_is_said(fit: Callable[[], AccuracyFit], says: str) -> None:
    warnings = " | ".join(fit().warnings)
    assert re.search(says, warnings), warnings


def test_too_few_budgets_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least three budgets"):
        fit_accuracy([10, 20], [1, 2], [5, 5], np.random.default_rng(0))
    with pytest.raises(ConfigError, match="between 0 and num_answers"):
        fit_accuracy([10, 20, 30], [1, 2, 9], [5, 5, 5], np.random.default_rng(0))


def test_a_line_of_seconds() -> None:
    rng = np.random.default_rng(1)
    tokens = np.repeat([10.0, 100, 400], 40)
    held = np.zeros(2)
    for _ in range(60):
        fit = fit_service(tokens, 0.5 + 0.02 * tokens + rng.normal(0, 0.3, len(tokens)))
        held += [fit.t0.low <= 0.5 <= fit.t0.high, fit.c.low <= 0.02 <= fit.c.high]
        assert fit.spread == pytest.approx(0.3, rel=0.3)
        assert fit.warnings == ()
    assert (held >= 50).all()


def test_seconds_that_are_no_line_are_said() -> None:
    falling = fit_service([1, 2, 3, 4], [4.0, 3.0, 2.2, 1.0])
    assert "c's interval reaches 0" in falling.warnings[0]
    bent = fit_service([10.0, 20, 30, 40], [1.0, 4.0, 9.0, 16.0])
    assert "t0 was set to 0" in bent.warnings[-1]
    assert bent.t0.value == 0
    assert bent.c.value == pytest.approx(1 / 3)  # fitted again, through 0
    with pytest.raises(ConfigError, match="two budgets"):
        fit_service([10, 10, 10], [1, 2, 3])
