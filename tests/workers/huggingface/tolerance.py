"""Tolerance of float32, so that tests do not depend on the processor."""

from __future__ import annotations

import math


def float32_tolerance(longest_sum: int, num_sums: int, magnitude: float) -> float:
    """Largest difference between two float32 computations of one number with different summation orders.

    Args:
        longest_sum: Terms of the longest sum.
        num_sums: Consecutive sums on the way to the number.
        magnitude: Largest magnitude on the way.

    Reference:
        Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis" (2019): a sum of n terms has a
        relative error of about the square root of n times the unit roundoff, 2^-24.
    """
    return 2 * num_sums * math.sqrt(longest_sum) * 2**-24 * magnitude
