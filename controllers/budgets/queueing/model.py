"""Model of budgets: accuracy, mean time in an M/G/1 queue, their balance, and its derivatives.

Arrivals are Poisson, one server serves first come first served, and a question takes t0 + c l seconds of it. With
rho = lambda E[S], a question is in the system for E[S] + lambda E[S²] / (2 (1 - rho)) seconds on average
(Pollaczek-Khinchine), and budgets l are worth

    J(l) = alpha sum_k pi_k p_k(l_k) - E[T](l).

J is strictly concave for rho < 1, if every A is above 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext.controllers.budgets.queueing.tasks import Floats, Mix


class Moments(NamedTuple):
    """Moments of the service time of budgets; the last axis of the budgets is summed.

    Attributes:
        first: E[S], in seconds.
        second: E[S²], in seconds squared.
        path: Mean seconds of a question alone on the server, its requests in parallel; None for single requests.
    """

    first: Floats
    second: Floats
    path: Floats | None = None


class Curvature(NamedTuple):
    """Negative Hessian of J, diag(diagonal) + U inner U^T. Solving with it takes time linear in the types."""

    diagonal: Floats
    U: Floats
    inner: Floats

    def solve(self, vector: Floats, free: npt.NDArray[np.bool_]) -> Floats:
        """Solve (-H) x = vector among the free types; x is 0 elsewhere."""
        inverse = free / self.diagonal
        plain = inverse * vector
        scaled = inverse[:, None] * self.U
        small = np.eye(2) + self.inner @ (self.U.T @ scaled)
        return plain - scaled @ np.linalg.solve(small, self.inner @ (self.U.T @ plain))


def accuracies(mix: Mix, budgets: Floats) -> Floats:
    """Probability of a right answer per type; same shape as the budgets. Reference: eq. 2."""
    return np.asarray(mix.D - mix.A * np.expm1(-mix.b * budgets))


def service_times(mix: Mix, budgets: Floats) -> Floats:
    """Seconds of service per type; same shape as the budgets. Reference: eq. 1."""
    return np.asarray(mix.t0 + mix.c * budgets)


def moments(mix: Mix, budgets: Floats) -> Moments:
    """First and second moment of the service time."""
    seconds = service_times(mix, budgets)
    return Moments(seconds @ mix.pi, seconds**2 @ mix.pi)


def pollaczek_khinchine(arrival_rate: float, of: Moments) -> Floats:
    """Mean seconds in the system, waiting and service; infinite for a load of 1 or more."""
    slack = 1 - arrival_rate * of.first
    with np.errstate(divide="ignore"):
        waiting = arrival_rate * of.second / (2 * np.maximum(slack, 0))
    return np.asarray(of.first + waiting)


def objective(mix: Mix, budgets: Floats) -> Floats:
    """J of budgets, shape [..., num_types]; minus infinity if they cannot be served."""
    gain = mix.alpha * (accuracies(mix, budgets) @ mix.pi)
    return np.asarray(gain - pollaczek_khinchine(mix.arrival_rate, moments(mix, budgets)))


def objective_of_steps(mix: Mix, budgets: Floats, step: float) -> Floats:
    """J after adding `step` tokens to one budget, for each type in turn; shape [num_types].

    J depends on three sums over the types, and a step changes one term of each, so all steps cost as much as one J.
    """
    of, seconds, later = moments(mix, budgets), service_times(mix, budgets), service_times(mix, budgets + step)
    gained = mix.pi * (accuracies(mix, budgets + step) - accuracies(mix, budgets))
    moved = Moments(of.first + mix.pi * (later - seconds), of.second + mix.pi * (later**2 - seconds**2))
    gain = mix.alpha * (accuracies(mix, budgets) @ mix.pi + gained)
    return np.asarray(gain - pollaczek_khinchine(mix.arrival_rate, moved))


def marginal_gain(mix: Mix, budgets: Floats) -> Floats:
    """Gain of alpha times accuracy per additional token of each type, divided by the type's probability."""
    return mix.alpha * mix.A * mix.b * np.exp(-mix.b * budgets)


def prices(mix: Mix, budgets: Floats) -> tuple[float, float]:
    """Price of a second of service, in seconds of mean system time: `base + slope * t` for a service time t."""
    of = moments(mix, budgets)
    slope = mix.arrival_rate / (1 - mix.arrival_rate * float(of.first))
    return 1 + slope**2 * float(of.second) / 2, slope


def gradient(mix: Mix, budgets: Floats) -> Floats:
    """Derivatives of J inside the stable region, shape [num_types]."""
    base, slope = prices(mix, budgets)
    return mix.pi * (marginal_gain(mix, budgets) - mix.c * (base + slope * service_times(mix, budgets)))


def curvature(mix: Mix, budgets: Floats) -> Curvature:
    """Negative second derivatives of J inside the stable region."""
    _, slope = prices(mix, budgets)
    weighted = mix.pi * mix.c
    cross, square = slope**2, slope**3 * float(moments(mix, budgets).second)
    diagonal = mix.pi * (mix.b * marginal_gain(mix, budgets) + slope * mix.c**2)
    U = np.stack([weighted, weighted * service_times(mix, budgets)], axis=1)
    return Curvature(diagonal, U, np.array([[square, cross], [cross, 0.0]]))


def kkt_residual(mix: Mix, budgets: Floats) -> float:
    """Distance of budgets from the optimum; 0 only at the optimum.

    For each type, the difference of marginal gain and marginal cost relative to their sum is a step of its budget in
    units of 1 / b, cut at the bounds. The residual is the largest step.
    """
    base, slope = prices(mix, budgets)
    gain, cost = marginal_gain(mix, budgets), mix.c * (base + slope * service_times(mix, budgets))
    place, end = mix.b * budgets, mix.b * mix.max_tokens
    return float(np.max(np.abs(np.clip(place + (gain - cost) / (gain + cost), 0, end) - place)))
