"""Drift of arrivals, in rate or mix of types, from those that budgets were planned for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.stats import chi2, chisquare

from scaffolding_ext import require
from scaffolding_ext.stats.intervals import Estimate


@dataclass(frozen=True)
class DriftBounds:
    """Definition of drift: a deviation above a bound and above chance.

    Attributes:
        rate: Largest allowed deviation from the planned rate, as a share of it.
        mix: Largest allowed total variation between the observed and planned shares of the types, in (0, 1].
        in_a_row: Consecutive windows that must drift before a new plan is made.
        most: Largest factor between the rate of a new plan and that of the first plan, in either direction.
    """

    rate: float = 0.25
    mix: float = 0.15
    window: int = 100
    level: float = 0.01
    in_a_row: int = 2
    most: float = 4.0

    def __post_init__(self) -> None:
        require.number("rate", self.rate, above=0)
        require.share("mix", self.mix)
        require.whole("window", self.window, least=10)
        require.number("level", self.level, above=0, below=1)
        require.whole("in_a_row", self.in_a_row)
        require.number("most", self.most, least=1)


class Arrivals(NamedTuple):
    """Arrivals in a window, compared with the plan.

    Attributes:
        shares: Shares of the planned types, by name; smoothed towards the plan by one arrival per type, so none is 0.
    """

    rate: Estimate
    shares: dict[str, float]
    rate_drifted: bool
    mix_drifted: bool

    @property
    def drifted(self) -> bool:
        """True if the rate or the mix drifted."""
        return self.rate_drifted or self.mix_drifted


def compare_arrivals(
    seconds: float,
    counts: Mapping[str, int],
    num_unknown: int,
    arrival_rate: float,
    shares: Mapping[str, float],
    bounds: DriftBounds,
) -> Arrivals:
    """Compare arrivals with a plan.

    The time of n arrivals of a Poisson process of rate r, times 2 r, is chi-square with 2 n degrees of freedom. The
    counts of types are compared with the plan's shares by Pearson's chi-square test.

    Args:
        seconds: Time from the arrival before the first one to the last, above 0.
        counts: Arrivals of each planned type; missing types count as 0.
        num_unknown: Arrivals of unplanned types, which count only for the rate.
        shares: Shares of the plan, above 0, summing to 1.
    """
    require.number("seconds", seconds, above=0)
    seen = np.array([counts.get(name, 0) for name in shares], dtype=np.float64)
    planned = np.array(list(shares.values()))
    known = float(seen.sum())
    freedom = 2 * (int(known) + num_unknown)
    rate = freedom / 2 / seconds
    low, high = (float(chi2.ppf(share, freedom)) / 2 / seconds for share in (0.025, 0.975))
    tail = float(chi2.cdf(2 * arrival_rate * seconds, freedom))
    rate_drifted = abs(rate / arrival_rate - 1) > bounds.rate and 2 * min(tail, 1 - tail) <= bounds.level
    mix_drifted = False
    if known:
        distance = 0.5 * float(np.abs(seen / known - planned).sum())
        chance = float(chisquare(seen, known * planned).pvalue) if len(seen) > 1 else 1.0
        mix_drifted = distance > bounds.mix and chance <= bounds.level
    smoothed = (seen + len(seen) * planned) / (known + len(seen))
    found = dict(zip(shares, (float(share) for share in smoothed), strict=True))
    return Arrivals(Estimate(rate, low, high), found, rate_drifted, mix_drifted)


class ArrivalWindow:
    """Collects arrivals and compares each full window with a plan."""

    def __init__(self, bounds: DriftBounds) -> None:
        self.bounds = bounds
        self._since: float | None = None
        self._counts: Counter[str] = Counter()
        self._num_unknown = 0

    def add(
        self, seconds: float, name: str | None, arrival_rate: float, shares: Mapping[str, float]
    ) -> Arrivals | None:
        """Add an arrival.

        Args:
            seconds: Arrival time, on any clock; a time before the last arrival counts as equal to it.
            name: Type of the question; one without a share is unknown.
        """
        if self._since is None:  # the first arrival has no gap before it
            self._since = seconds
            return None
        if name is not None and name in shares:
            self._counts[name] += 1
        else:
            self._num_unknown += 1
        num_seen = self._counts.total() + self._num_unknown
        if num_seen < self.bounds.window or seconds <= self._since:
            return None
        found = compare_arrivals(
            seconds - self._since, self._counts, self._num_unknown, arrival_rate, shares, self.bounds
        )
        self._since, self._counts, self._num_unknown = seconds, Counter(), 0
        return found
