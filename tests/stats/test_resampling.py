"""The bootstrap distribution, its memory and its input, each through the public bootstraps.

An end of an interval is a quantile at some level, so it is held to 4 binomial standard errors of that level.
"""

from __future__ import annotations

import itertools
import math
import tracemalloc
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from scaffolding_ext.stats.intervals import Estimate, paired_bootstrap

Floats = npt.NDArray[np.float64]

CONFIDENCES = (0.8, 0.95)


def seeded(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def assert_are_quantiles(ends: Estimate, confidence: float, atoms: Floats, weights: Floats, num_resamples: int) -> None:
    """Each end is a quantile of the distribution of `atoms` with `weights`, give or take the resampling's tolerance."""
    for end, level in ((ends.low, (1 - confidence) / 2), (ends.high, (1 + confidence) / 2)):
        slack = 4 * math.sqrt(level * (1 - level) / num_resamples)
        assert weights[atoms < end - 1e-9].sum() <= level + slack
        assert weights[atoms <= end + 1e-9].sum() >= level - slack


@pytest.mark.parametrize("confidence", CONFIDENCES)
def test_interval_matches_every_resample_enumerated(confidence: float) -> None:
    a = np.array([3.0, 1.5, 8.0, 2.0, 7.0, 1.0, 4.5])
    b = np.array([1.0, 2.5, 3.0, 4.0, 2.0, 2.0, 5.0])
    questions = np.array(["q1", "q2", "q2", "q3", "q4", "q1", "q2"])
    members = [np.flatnonzero(questions == name) for name in np.unique(questions)]
    atoms = []
    for draw in itertools.product(members, repeat=len(members)):
        drawn = np.concatenate(draw)
        atoms.append(np.mean(a[drawn] - b[drawn]))
    estimate = paired_bootstrap(a, b, questions, rng=seeded(), num_resamples=40_000, confidence=confidence)
    assert estimate.value == pytest.approx(np.mean(a - b))
    assert_are_quantiles(estimate, confidence, np.array(atoms), np.full(len(atoms), 1 / len(atoms)), 40_000)


@pytest.mark.parametrize("num_distinct", [2, 400, 20_000])
def test_memory_is_bounded(num_distinct: int) -> None:
    a = (np.arange(20_000) % num_distinct).astype(float)
    tracemalloc.start()
    paired_bootstrap(a, np.zeros_like(a), rng=seeded(), num_resamples=2_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 * 2**20  # all draws at once would take 320 MB


@pytest.mark.parametrize(
    ("a", "b", "questions", "message"),
    [
        ([1, 2, 3], [1, 2], None, r"a has 3 entries and b 2; .* paired"),
        ([], [], None, r"a has shape \(0,\); .* at least one"),
        ([1, 2], [1, math.nan], None, r"b\[1\] is nan; .* finite"),
        (["1", "2"], [1, 2], None, r"a has dtype <U1"),
        ([1, 2], [1, 2], [1], r"questions has shape \(1,\); .* 2 samples"),
        ([1, 2], [1, 2], ["q", None], r"questions has dtype object"),
        ([1, 2], [1, 2], ["q", "q"], r"all 2 samples belong to one question, q"),
        ([1], [1], None, r"one question"),
    ],
)
def test_bootstraps_refuse_malformed_samples(
    a: Sequence[object],
    b: Sequence[object],
    questions: Sequence[object] | None,
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        paired_bootstrap(a, b, questions, rng=seeded())


def test_question_names_may_be_an_object_column() -> None:
    names = np.array(["x", "x", "y", "z"], dtype=object)
    by_name = paired_bootstrap([1, 2, 3, 5], [0, 0, 0, 1], names, rng=seeded())
    assert by_name == paired_bootstrap([1, 2, 3, 5], [0, 0, 0, 1], [0, 0, 1, 2], rng=seeded())


@pytest.mark.parametrize("num_resamples", [0, -5, 1.5])
def test_bootstraps_refuse_no_resamples(num_resamples: int) -> None:
    with pytest.raises(ValueError, match=r"num_resamples: is .* at least 1"):
        paired_bootstrap([1, 2], [1, 1], rng=seeded(), num_resamples=num_resamples)
