"""Random arrival times of requests at a rate, one by one or in bursts."""

from __future__ import annotations

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.budgets.queueing.tasks import Floats


def arrival_times(arrival_rate: float, number: int, rng: np.random.Generator, burst: float = 1.0) -> Floats:
    """Draw arrival times whose gaps have a gamma distribution.

    Args:
        arrival_rate: Mean arrivals per second, above 0.
        burst: Coefficient of variation of the gaps, above 0: 1 is a Poisson process; above 1 requests come in bursts.

    Returns:
        Seconds, increasing, shape [number].

    Raises:
        ConfigError: The rate or the burst is not above 0.
    """
    require.number("arrival_rate", arrival_rate, above=0)
    require.number("burst", burst, above=0)
    shape = burst**-2.0
    return np.cumsum(rng.gamma(shape, 1 / (shape * arrival_rate), number))
