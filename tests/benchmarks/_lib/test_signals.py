"""Correlations and least squares against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks._lib.signals import correlation, fit_combination


def test_correlations_of_a_line_and_of_a_curve() -> None:
    assert correlation([1, 2, 3, 4], [8, 6, 4, 2]) == pytest.approx((-1, -1))
    found = correlation([1, 2, 3, 4], [1, 8, 27, 64])
    assert found.kendall == pytest.approx(1)
    assert 0.9 < found.pearson < 1


def test_a_signal_that_does_not_vary_has_no_correlation() -> None:
    assert all(math.isnan(value) for value in correlation([1, 1, 1], [1, 2, 3]))


def test_the_combination_is_found_again_and_correlates_best() -> None:
    rng = np.random.default_rng(0)
    signals = {"certaindex": rng.random(50).tolist(), "length": rng.normal(500, 100, 50).tolist()}
    needed = (3 - 2 * np.array(signals["certaindex"]) + 0.01 * np.array(signals["length"])).tolist()
    fitted = fit_combination(signals, needed)
    assert fitted.intercept == pytest.approx(3)
    assert fitted.weights == pytest.approx({"certaindex": -2, "length": 0.01})
    assert fitted.predict(signals) == pytest.approx(needed)
    noisy = (np.array(needed) + rng.normal(0, 1, 50)).tolist()
    best = correlation(fit_combination(signals, noisy).predict(signals).tolist(), noisy).pearson
    assert best >= max(abs(correlation(values, noisy).pearson) for values in signals.values())


def test_a_constant_signal_gets_no_weight() -> None:
    fitted = fit_combination({"flat": [2, 2, 2], "x": [1, 2, 3]}, [1, 2, 3])
    assert fitted.weights == pytest.approx({"flat": 0, "x": 1})


def test_malformed_signals_are_refused() -> None:
    with pytest.raises(ValueError, match="1 signals for 2 questions"):
        correlation([1], [1, 2])
    with pytest.raises(ValueError, match=r"signals of \[1\] values for 2 questions"):
        fit_combination({"x": [1]}, [1, 2])
