"""Anytime-valid confidence interval of the mean of a finite set of values that are drawn without replacement.

It holds at every draw at once, so looking after each value and stopping on what is seen costs no confidence.

Reference: Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting", JRSS B 2024: section 5, the
capital of bets against a mean, for draws without replacement.

Deviation: Bets are sized to refute a mean that lies `gap` away (Kelly's for that gap), since the wanted width is known;
the paper's aim at no width. A set of n values has few means, which are covered by a grid, not searched by root finding.
"""

from __future__ import annotations

import math

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.stats.intervals import Estimate, Interval

_NUM_MEANS = 4_001
_MOST_STAKED = 0.75  # of the capital, in one bet
_TINY = 1e-9
_SHARE = Interval(0.0, 1.0)


class FiniteMean:
    """Mean of `num_values` values, of which those so far were drawn uniformly without replacement.

    Args:
        num_values: Size of the set.
        gap: Distance at which a wrong mean should be refuted soonest; the half-width that is wanted.
        span: Bounds of the values.
        against: A mean that bets also try to refute if it is further than `gap` from the mean so far.
        alpha: Probability that the interval ever misses the set's mean.

    Attributes:
        interval: Where the mean of the whole set lies; it only narrows, and is a point when all values are drawn.
    """

    def __init__(
        self, num_values: int, gap: float, span: Interval = _SHARE, against: float | None = None, alpha: float = 0.05
    ) -> None:
        self._num_values = require.whole("num_values", num_values)
        self._span = span
        self._width = span.high - span.low
        self._gap = require.number("gap", gap, above=0) / self._width
        self._against = None if against is None else (against - span.low) / self._width
        self._limit = math.log(2 / require.number("alpha", alpha, above=0, below=1))
        self.num_drawn = 0
        self.interval = span
        self._total = 0.0  # of the values, scaled to [0, 1] like everything below
        self._squares = 0.0
        self._low, self._high = 0.0, 1.0
        self._means = np.linspace(0.0, 1.0, _NUM_MEANS)
        self._capital = np.zeros((2, _NUM_MEANS))  # logarithms: of bets that the mean is higher, and that it is lower

    @property
    def estimate(self) -> Estimate:
        """Mean of the values so far, with the interval of the set's mean; without values, the middle of the span."""
        mean = self._total / self.num_drawn if self.num_drawn else 0.5
        return Estimate(self._span.low + self._width * mean, *self.interval)

    def add(self, value: float) -> None:
        """Count the next value drawn.

        Raises:
            ConfigError: It lies outside the span.
            ValueError: All values were drawn before.
        """
        if self.num_drawn == self._num_values:
            raise ValueError(f"all {self._num_values} values were added before")
        given = require.number("value", value, least=self._span.low, most=self._span.high)
        scaled = (given - self._span.low) / self._width
        num_left = self._num_values - self.num_drawn
        guess = (self._total + 0.5) / (self.num_drawn + 1)
        variance = (self._squares + 0.25) / (self.num_drawn + 1)
        expected = np.clip((self._num_values * self._means - self._total) / num_left, _TINY, 1 - _TINY)
        for side, (sign, most) in enumerate(((1, expected), (-1, 1 - expected))):
            gap = self._gap if self._against is None else max(self._gap, sign * (guess - self._against))
            gap *= self._num_values / num_left  # a wrong mean is further from the mean of what is left
            stake = np.minimum(gap / (variance + gap * gap), _MOST_STAKED / most)
            self._capital[side] += np.log1p(sign * stake * (scaled - expected))
        self.num_drawn += 1
        self._total += scaled
        self._squares += (scaled - (self._total + 0.5) / (self.num_drawn + 1)) ** 2
        self._narrow()

    def _narrow(self) -> None:
        """Drop refuted means. Capital is monotone in the mean, so they lie at the ends, and the grid loses nothing."""
        is_below, is_above = self._capital >= self._limit
        most = self._total + self._num_values - self.num_drawn
        low = max(self._low, self._total / self._num_values, *self._means[is_below][-1:])
        high = min(self._high, most / self._num_values, *self._means[is_above][:1])
        kept = ~(is_below | is_above)
        self._means, self._capital = self._means[kept], self._capital[:, kept]
        if low <= high + _TINY:  # otherwise the set's mean was missed, which has probability alpha
            self._low, self._high = min(low, high), max(low, high)
            self.interval = Interval(*(self._span.low + self._width * end for end in (self._low, self._high)))
