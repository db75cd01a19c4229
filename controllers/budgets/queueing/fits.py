"""Curves from measurements: accuracy against budget, and seconds against budget.

Accuracy is fitted twice: by the paper's saturating curve, for `solve`, and by a monotone curve, for `solve_on_grid`.
The first fit warns when its curve must not be trusted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression
from scipy.stats import chi2, t

from scaffolding_ext.controllers.budgets.queueing.tasks import Floats
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.stats.intervals import Estimate

_MISS = 0.05  # deviation beyond chance that triggers a warning
_SIGNIFICANCE = 0.01
_UNSURE = 4.0  # a rate with an interval this wide is unknown
_NUM_RATES = 240
_LEAST_ANSWERS = 30


@dataclass(frozen=True)
class AccuracyFit:
    """A (1 - exp(-b l)) + D, with 95 % intervals from resampled answers.

    Attributes:
        b: Rate at which thinking adds accuracy, per token.
        p_value: Chance of misses this large; None with three budgets, which every curve fits.
        warnings: Reasons not to trust the curve or one of its numbers.
    """

    A: Estimate
    b: Estimate
    D: Estimate
    largest_miss: float
    p_value: float | None
    warnings: tuple[str, ...]

    def at(self, budgets: npt.ArrayLike) -> Floats:
        return _curve(np.asarray(budgets, dtype=np.float64), self.A.value, self.b.value, self.D.value)


@dataclass(frozen=True)
class ServiceFit:
    """t0 + c l, with 95 % intervals.

    Attributes:
        spread: Standard deviation of the residuals, in seconds.
    """

    t0: Estimate
    c: Estimate
    spread: float
    warnings: tuple[str, ...]


class _Best(NamedTuple):
    """Parameters with one entry per row of accuracies."""

    A: Floats
    b: Floats
    D: Floats


def fit_accuracy(
    budgets: npt.ArrayLike,
    num_correct: npt.ArrayLike,
    num_answers: npt.ArrayLike,
    rng: np.random.Generator,
    num_resamples: int = 400,
) -> AccuracyFit:
    """Fit eq. 2 by least squares, weighted by the answers of each budget; A, D and A + D stay in [0, 1].

    For each b of a fine grid the best A and D have a closed form, so no local optimum is mistaken for the best.

    Args:
        budgets: Tokens, at least three different values, shape [num_budgets].
        num_answers: Answers per budget, at least 1.
    """
    tokens, right, total = (np.asarray(values, dtype=np.float64) for values in (budgets, num_correct, num_answers))
    if tokens.ndim != 1 or tokens.shape != right.shape or tokens.shape != total.shape:
        raise ConfigError(f"has shape {right.shape}; give one count for each budget", "num_correct")
    if len(np.unique(tokens)) < 3:
        raise ConfigError(f"are {np.unique(tokens).tolist()}; three parameters need at least three budgets", "budgets")
    if (tokens < 0).any() or (total < 1).any() or (right < 0).any() or (right > total).any():
        raise ConfigError("must be between 0 and num_answers, with at least one answer each", "num_correct")
    smoothed = (right + 0.5) / (total + 1)
    drawn = rng.binomial(total.astype(int), smoothed, (num_resamples, len(tokens))) / total
    best = _fitted(tokens, np.concatenate([[right / total], drawn]), total)
    A, b, D = (_estimated(values) for values in best)
    expected = _curve(tokens, A.value, b.value, D.value)
    misses = np.abs(right / total - expected)
    freedom = len(tokens) - 3
    likely = np.clip(expected, 0.5 / total, 1 - 0.5 / total)
    p_value = float(chi2.sf(np.sum(total * misses**2 / (likely * (1 - likely))), freedom)) if freedom else None
    warnings = _warnings(tokens, total, A, b, misses, p_value)
    return AccuracyFit(A, b, D, float(misses.max()), p_value, warnings)


def fit_monotone(budgets: npt.ArrayLike, num_correct: npt.ArrayLike, num_answers: npt.ArrayLike) -> Floats:
    """Non-decreasing accuracies at growing budgets, nearest to the measured ones, weighted by answers; any shape."""
    tokens, right, total = (np.asarray(values, dtype=np.float64) for values in (budgets, num_correct, num_answers))
    if (np.diff(tokens) <= 0).any():
        raise ConfigError(f"are {tokens.tolist()}; they must increase", "budgets")
    return np.asarray(isotonic_regression(right / total, weights=total).x, dtype=np.float64)


def fit_service(budgets: npt.ArrayLike, seconds: npt.ArrayLike) -> ServiceFit:
    """Fit eq. 1 by least squares; neither parameter is below 0.

    Args:
        budgets: Tokens of each answer, or its budget, shape [num_answers].
    """
    tokens, times = np.asarray(budgets, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    if tokens.ndim != 1 or tokens.shape != times.shape or len(tokens) < 3 or np.ptp(tokens) == 0:
        raise ConfigError(
            f"are {len(tokens)} with {len(np.unique(tokens))} values; give at least three answers and two budgets",
            "budgets",
        )
    middle = tokens.mean()
    around = float(np.sum((tokens - middle) ** 2))
    c = float((tokens - middle) @ times) / around
    t0 = start = float(times.mean() - c * middle)
    if start < 0:
        c, t0 = float(tokens @ times) / float(tokens @ tokens), 0.0
    spread = float(np.sqrt(np.sum((times - t0 - c * tokens) ** 2) / (len(tokens) - 2)))
    wide = float(t.ppf(0.975, len(tokens) - 2)) * spread
    of_c, of_t0 = wide / np.sqrt(around), wide * np.sqrt(1 / len(tokens) + middle**2 / around)
    warnings = []
    if c - of_c <= 0:
        warnings.append("seconds do not clearly grow with the budget: c's interval reaches 0; measure larger budgets")
    if start < 0:
        warnings.append(f"the line starts at {start:.3g} s, so t0 was set to 0: seconds are not linear in the budget")
    return ServiceFit(
        Estimate(t0, max(t0 - of_t0, 0), t0 + of_t0), Estimate(c, c - of_c, c + of_c), spread, tuple(warnings)
    )


def _curve(tokens: Floats, A: float, b: float, D: float) -> Floats:
    return np.asarray(D - A * np.expm1(-b * tokens))


def _fitted(tokens: Floats, rows: Floats, weights: Floats) -> _Best:
    """Best parameters of each row of accuracies, shape [num_rows, num_budgets]."""
    smallest = np.min(tokens[tokens > 0])
    rates = np.geomspace(1e-3 / tokens.max(), 10 / smallest, _NUM_RATES)
    share = weights / weights.sum()
    rises = -np.expm1(-rates[:, None] * tokens)  # [num_rates, num_budgets]
    mean_rise, mean_row = rises @ share, rows @ share
    spread = np.maximum((rises**2) @ share - mean_rise**2, 1e-300)
    slope = ((rows * share) @ rises.T - mean_row[:, None] * mean_rise) / spread  # [num_rows, num_rates]
    inside_A, inside_D = slope, mean_row[:, None] - slope * mean_rise
    # the free optimum, and that of each edge of the triangle A >= 0, D >= 0, A + D <= 1
    through_0 = np.clip(((rows * share) @ rises.T) / ((rises**2) @ share), 0, 1)
    falls = 1 - rises
    to_1 = np.clip((((1 - rows) * share) @ falls.T) / np.maximum((falls**2) @ share, 1e-300), 0, 1)
    level = np.broadcast_to(np.clip(mean_row, 0, 1)[:, None], slope.shape)
    tried_A = np.stack([inside_A, through_0, to_1, np.zeros_like(slope)])
    tried_D = np.stack([inside_D, np.zeros_like(slope), 1 - to_1, level])
    square = (rises**2) @ share
    loss = (
        tried_A**2 * square
        + tried_D**2
        + 2 * tried_A * tried_D * mean_rise
        - 2 * tried_A * ((rows * share) @ rises.T)
        - 2 * tried_D * mean_row[:, None]
    )
    loss[0][(inside_A < 0) | (inside_D < 0) | (inside_A + inside_D > 1)] = np.inf
    number = np.arange(len(rows))
    kind, rate = np.unravel_index(np.argmin(loss.transpose(1, 0, 2).reshape(len(rows), -1), axis=1), (4, _NUM_RATES))
    return _Best(tried_A[kind, number, rate], rates[rate], tried_D[kind, number, rate])


def _estimated(values: Floats) -> Estimate:
    return Estimate(float(values[0]), *(float(end) for end in np.quantile(values[1:], [0.025, 0.975])))


def _warnings(
    tokens: Floats, total: Floats, A: Estimate, b: Estimate, misses: Floats, p_value: float | None
) -> tuple[str, ...]:
    found = []
    if total.min() < _LEAST_ANSWERS:
        found.append(f"a budget has {total.min():.0f} answers; below {_LEAST_ANSWERS} accuracies are mostly chance")
    if p_value is None:
        found.append("three budgets fit any such curve; measure a fourth to test this one")
    elif p_value < _SIGNIFICANCE and misses.max() > _MISS:
        found.append(
            f"the curve misses by up to {100 * misses.max():.0f} points, more than chance (p = {p_value:.2g}): accuracy"
            " does not saturate here and may be S-shaped; use the monotone fit and the solver on the grid"
        )
    span = f"budgets from {tokens.min():g} to {tokens.max():g} do not determine"
    if A.low < 0.01:
        found.append(f"{span} A and b: accuracy does not clearly grow between them; measure smaller and larger ones")
    elif b.high > _UNSURE * b.low:
        bend = b.value * tokens  # the curve bends where this is about 1
        better = "smaller budgets" if bend.min() > 1 else "larger budgets" if bend.max() < 1 else "more answers"
        found.append(f"{span} b (between {b.low:.2g} and {b.high:.2g}); measure {better}")
    return tuple(found)
