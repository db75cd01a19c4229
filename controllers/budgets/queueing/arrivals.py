"""Whether questions still arrive as they did when budgets were planned: how many in a second, and of which types."""

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
    """What counts as a drift: more than a bound, and more than chance.

    Attributes:
        rate: Largest difference from the planned rate, as a share of it.
        mix: Largest total variation between the shares of the types and the planned ones, in (0, 1].
        in_a_row: Windows that must drift one after the other before a new plan is made.
        most: The rate of a new plan is at most so many times that of the first plan, and at least its inverse.
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
    """How questions arrived in a window, beside the plan.

    Attributes:
        shares: Of the planned types, by name; smoothed towards the plan by one arrival a type, so that none is 0.
    """

    rate: Estimate
    shares: dict[str, float]
    rate_drifted: bool
    mix_drifted: bool

    @property
    def drifted(self) -> bool:
        """Whether the rate or the mix drifted."""
        return self.rate_drifted or self.mix_drifted


def compare_arrivals(
    seconds: float,
    counts: Mapping[str, int],
    num_unknown: int,
    arrival_rate: float,
    shares: Mapping[str, float],
    bounds: DriftBounds,
) -> Arrivals:
    """Hold arrivals against a plan.

    The time of n arrivals of a Poisson process of rate r, times 2 r, is chi-square with 2 n degrees of freedom; the
    counts of types are held against the plan's shares by Pearson's chi-square.

    Args:
        seconds: From the arrival before the first of them to the last, above 0.
        counts: Arrivals of each planned type; those that are not named are none.
        num_unknown: Arrivals of no planned type, which count for the rate alone.
        shares: Of the plan, above 0, with the sum 1.
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
    """Gathers arrivals, and holds each window of so many against a plan."""

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
            seconds: When it came, on any clock; an earlier one than the last is taken as of the same moment.
            name: Its type; one that is not among the shares is unknown.
        """
        if self._since is None:  # nothing says how long it was waited for
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
