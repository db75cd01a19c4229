"""Budgets that maximize J, by the paper's two methods.

J is strictly concave if the load can be served, so it has one optimum there, and `model.kkt_residual` measures the
distance to it. The methods' convergence conditions fail in the paper's own example, so each step is halved until J
improves.

Reference: Ozbas and Bastopcu, arXiv 2601.10274.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import wrightomega

from scaffolding_ext.controllers.budgets.queueing.model import (
    curvature,
    gradient,
    kkt_residual,
    moments,
    objective,
    prices,
    service_times,
)
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats, Mix

_TOLERANCE = 1e-10  # a sufficiently small KKT residual
_POLISH = 3
_GAIN = 1e-4  # required share of the gain that the gradient promises
_SHORTEST = 2.0**-60


def best_responses(mix: Mix, base: float, slope: float) -> Floats:
    """Budgets within bounds at which gain equals cost, if a second costs a type `base + slope t`.

    At y = b l the equation alpha A b exp(-y) = c (base + slope (t0 + c l)) is y + log(1 + y / q) = r, with q = b (base
    + slope t0) / (slope c) and r the logarithm of gain by cost at l = 0. In w = q + y it is w + log w = q + log q + r:
    w is Lambert's W of the exponential of the right-hand side, which is Wright's omega. For large q the difference w -
    q has few digits left; Newton steps on y, which only underestimate, restore them.

    Reference: arXiv 2601.10274, eq. 24.
    Deviation: W is computed in the log domain; its argument overflows at the budgets of reasoning models.
    """
    at_zero = base + slope * mix.t0
    q = mix.b * at_zero / (slope * mix.c)
    with np.errstate(divide="ignore"):
        r = np.log(mix.alpha * mix.A * mix.b) - np.log(mix.c * at_zero)
    positive = r > 0
    q, r = np.where(positive, q, 1.0), np.where(positive, r, 0.0)
    y = np.clip(np.real(wrightomega(q + np.log(q) + r)) - q, 0, r)
    for _ in range(_POLISH):
        y = np.maximum(y - (y + np.log1p(y / q) - r) / (1 + 1 / (q + y)), 0)
    return np.where(positive, np.minimum(y / mix.b, mix.max_tokens), 0.0)


def fixed_point(mix: Mix, start: Floats, max_steps: int = 200) -> Floats:
    """The paper's coupled projected fixed point: best responses to prices of service, and prices from these.

    Args:
        mix: The types.
        start: Budgets that can be served.
        max_steps: Maximum number of steps.

    Reference: arXiv 2601.10274, eq. 24.
    Deviation: Steps are damped. The paper's condition for contraction never holds (its constant is at least 1); a step
    towards the best responses still leads uphill, since these maximize a concave function with J's gradient.
    """
    budgets, size = start, 1.0
    for _ in range(max_steps):
        if kkt_residual(mix, budgets) <= _TOLERANCE:
            break
        before = budgets
        budgets = _uphill(mix, budgets, best_responses(mix, *prices(mix, budgets)) - budgets, size)
        if budgets is before:
            break
        size = _next_size(mix, before, budgets)
    return budgets


def lipschitz(mix: Mix, largest: Floats) -> float:
    """Bound on the largest eigenvalue of the negative Hessian of J over all budgets from 0 to the largest.

    Each term grows with the budgets, except that of accuracy, which is largest at 0.

    Args:
        largest: Budgets that can be served, shape [num_types].

    Reference: arXiv 2601.10274, eq. 32.
    Deviation: The queue's part is bounded by its norm at the largest budgets.
    """
    curve = curvature(mix, largest)
    of_queue = np.max(curve.diagonal) + np.linalg.norm(curve.U @ curve.inner @ curve.U.T, 2)
    return float(np.max(mix.pi * mix.alpha * mix.A * mix.b**2) + of_queue)


def contraction(mix: Mix, budgets: Floats) -> float:
    """Largest factor by which one step of the undamped fixed point scales a change of budgets: the largest row sum.

    Below 1, the fixed point contracts near these budgets, in the maximum norm. Best responses at a bound do not move
    and have no row.

    Args:
        budgets: Budgets that can be served, shape [num_types].

    Reference: arXiv 2601.10274, eq. 26 (Lemma 2), a bound of this norm over all budgets.
    Deviation: It is the norm itself, at one point. The paper's bound is at least `max_k sum_j pi_j c_j / c_k`, so at
    least 1, and never shows that the fixed point contracts.
    """
    base, slope = prices(mix, budgets)
    seconds, of = service_times(mix, budgets), moments(mix, budgets)
    answers = best_responses(mix, base, slope)
    answered = service_times(mix, answers)
    # A token of type j moves the price of a second at t by slope^2 pi_j c_j (slope E[S^2] + t_j + t).
    moved = slope**2 * mix.pi * mix.c * (slope * float(of.second) + seconds + answered[:, None])
    bend = mix.b * (base + slope * answered) + slope * mix.c
    is_free = (answers > 0) & (answers < mix.max_tokens)
    return float(np.max(np.where(is_free, moved.sum(axis=1) / bend, 0.0)))


def projected_gradient(mix: Mix, start: Floats, max_steps: int = 20_000, step: float | None = None) -> Floats:
    """The paper's projected gradient: steps along the gradient, cut at the bounds.

    Args:
        mix: The types.
        start: Budgets that can be served.
        max_steps: Maximum number of steps.
        step: Constant step for every type and iteration, such as 1 / `lipschitz`; None scales and backtracks.

    Reference: arXiv 2601.10274, eq. 38.
    Deviation: The paper's constant step requires that even the largest budgets can be served, which its example does
    not meet (its load there is 41). Without `step`, the diagonal curvature scales a step, the last step sizes it, and
    it is halved until J improves.
    """
    budgets, size = start, 1.0
    for _ in range(max_steps):
        if kkt_residual(mix, budgets) <= _TOLERANCE:
            break
        slope, before = gradient(mix, budgets), budgets
        if step is not None:
            budgets = np.clip(budgets + step * slope, 0, mix.max_tokens)
            continue
        budgets = _uphill(mix, budgets, slope / curvature(mix, budgets).diagonal, size)
        if budgets is before:
            break
        size = _next_size(mix, before, budgets)
    return budgets


SOLVERS: dict[str, Callable[[Mix, Floats], Floats]] = {
    "fixed_point": fixed_point,
    "projected_gradient": projected_gradient,
}


def _uphill(mix: Mix, budgets: Floats, direction: Floats, step: float) -> Floats:
    """Budgets after a step, cut at the bounds and halved until J improves; unchanged if no step does."""
    value, slope = float(objective(mix, budgets)), gradient(mix, budgets)
    rounding = 8 * np.finfo(float).eps * (abs(value) + mix.alpha)  # a smaller gain is lost in rounding
    while step > _SHORTEST:
        tried = np.clip(budgets + step * direction, 0, mix.max_tokens)
        promised = float(slope @ (tried - budgets))
        unseen = rounding if promised < rounding else 0.0
        if promised > 0 and float(objective(mix, tried)) >= value + _GAIN * promised - unseen:
            return tried
        step /= 2
    return budgets


def _next_size(mix: Mix, before: Floats, after: Floats) -> float:
    """Size of the next step, from the curvature along the last one.

    Reference: Barzilai and Borwein, "Two-point step size gradient methods", 1988.
    """
    moved = after - before
    bent = float(moved @ (gradient(mix, before) - gradient(mix, after)))
    scaled = float(moved @ (curvature(mix, before).diagonal * moved))
    return min(max(scaled / bent, 1e-8), 1e8) if bent > 0 else 1.0
