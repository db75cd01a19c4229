"""Sample size of a paired evaluation: power simulated from a pilot."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from scaffolding_ext import require
from scaffolding_ext.stats.resampling import checked_values, critical_value, group_by_question, resampled_totals

_NO_VARIATION = 1e-12  # relative size below which a spread is only rounding


def bootstrap_power(
    differences: npt.ArrayLike,
    questions: npt.ArrayLike | None = None,
    *,
    num_questions: int,
    bar: float,
    effect: float | None = None,
    rng: np.random.Generator,
    num_simulations: int = 2_000,
    confidence: float = 0.95,
) -> float:
    """Probability that an evaluation of `num_questions` puts the whole interval of its mean difference above `bar`.

    Each simulation draws that many questions from the pilot with replacement, each with all its samples, and checks
    whether the lower end of the clustered normal interval lies above the bar. For an upper end below a bar (fewer
    tokens), negate `differences`, `bar` and `effect`.

    Args:
        differences: Pilot values of `a - b`, shape [num_samples], finite. The planned evaluation is assumed to draw
            such questions, with the pilot's number of samples of each.
        questions: Question id of each sample, as in `paired_bootstrap`.
        num_questions: Questions in the planned evaluation, at least 2.
        bar: 0 to show superiority, -0.015 to show a loss of less than 1.5 points.
        effect: Assumed true mean difference; the pilot's differences are shifted to it. None takes the pilot's mean,
            which depends on the pilot's luck.
        num_simulations: The standard error is `sqrt(power * (1 - power) / num_simulations)`.

    Raises:
        ValueError: The pilot has fewer than 2 questions, or no variation between them.

    Reference: Miller, "Adding error bars to evals", arXiv:2411.00640, 2024, on clustered standard errors and power;
        Cochran, "Sampling Techniques", 1977, chapter 6, for the variance of a mean over questions of unequal numbers of
        samples.

    Deviation: Simulated from the pilot instead of a normal formula. A simulation whose questions show no variation
    misses the bar: its interval of width 0 would otherwise favor the smallest evaluations.
    """
    z = critical_value(confidence)
    num_questions = require.whole("num_questions", num_questions, 2)
    num_simulations = require.whole("num_simulations", num_simulations, 1)
    values = checked_values("differences", differences)
    grouped = group_by_question(questions, len(values))
    totals, num_samples = grouped.totals(values), grouped.totals(np.ones_like(values))
    pilot_mean = float(totals.sum() / num_samples.sum())
    effect = pilot_mean if effect is None else effect
    if not (math.isfinite(bar) and math.isfinite(effect)):
        raise ValueError(f"bar is {bar} and effect {effect}; both must be finite.")
    residuals = totals - pilot_mean * num_samples
    if np.abs(residuals).max() <= _NO_VARIATION * np.abs(totals).max():
        raise ValueError(
            f"the differences of all {len(totals)} pilot questions average {pilot_mean:g}; without variation a pilot "
            "says nothing about power. Give one in which questions differ."
        )
    moments = (residuals, num_samples, residuals**2, residuals * num_samples, num_samples**2)
    drawn = resampled_totals(np.column_stack(moments), num_questions, num_simulations, rng)
    residual, size, residual_squares, cross, size_squares = drawn.T
    deviation = residual / size  # of the simulated mean from the true one
    squares = residual_squares - 2 * deviation * cross + deviation**2 * size_squares  # of residuals about that mean
    varies = squares > _NO_VARIATION * residual_squares
    standard_error = np.sqrt(np.where(varies, squares, 0) * num_questions / (num_questions - 1)) / size
    return float(np.mean(varies & (effect + deviation - z * standard_error > bar)))


def required_num_questions(
    differences: npt.ArrayLike,
    questions: npt.ArrayLike | None = None,
    *,
    bar: float,
    effect: float | None = None,
    power: float = 0.9,
    max_num_questions: int = 10_000,
    rng: np.random.Generator,
    num_simulations: int = 2_000,
    confidence: float = 0.95,
) -> int | None:
    """Smallest number of questions with which an evaluation meets `bar` with probability `power`.

    Doubles the number until `bootstrap_power` reaches `power`, then bisects; this assumes that power grows with the
    number. Each number is simulated from its own fixed seed, so a search is reproducible. At 2,000 simulations and a
    power of 0.9 the answer is accurate to some 5 percent. Arguments and errors are those of `bootstrap_power`.

    Returns:
        At least 2; None if even `max_num_questions` does not reach `power`, for example if `effect` is at or below
        `bar`.
    """
    require.number("power", power, above=0, below=1)
    max_num_questions = require.whole("max_num_questions", max_num_questions, 2)
    seed = int(rng.integers(2**63))

    def suffices(num_questions: int) -> bool:
        reached = bootstrap_power(
            differences,
            questions,
            num_questions=num_questions,
            bar=bar,
            effect=effect,
            rng=np.random.default_rng((seed, num_questions)),
            num_simulations=num_simulations,
            confidence=confidence,
        )
        return reached >= power

    too_few, enough = 1, 2
    while not suffices(enough):
        if enough == max_num_questions:
            return None
        too_few, enough = enough, min(2 * enough, max_num_questions)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if suffices(middle) else (middle, enough)
    return enough
