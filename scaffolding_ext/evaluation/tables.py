"""One notation of numbers and intervals."""

from __future__ import annotations


def between(low: float, high: float, form: str = ".1f") -> str:
    """Format an interval to follow its estimate."""
    return f" ({low:{form}} to {high:{form}})"


def amount(number: float) -> str:
    """Format a number for people: 1.5 million, 12,345, 182.4."""
    if abs(number) >= 999_950:
        return f"{number / 1e6:,.1f} million"
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"
