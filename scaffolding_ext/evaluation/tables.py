"""One notation of numbers and intervals."""

from __future__ import annotations

from collections.abc import Iterable

from scaffolding_ext.controllers.vote.voting import drawn_by
from scaffolding_ext.request.program import Program

_TIMES = 2.0  # ratio of costs from which it is shown as such, not in percent


def between(low: float, high: float, form: str = ".1f") -> str:
    """Format an interval to follow its estimate; nothing if it has no width."""
    return "" if low == high else f" ({low:{form}} to {high:{form}})"


def amount(number: float) -> str:
    """Format a number for people: 1.5 million, 12,345, 182.4."""
    if abs(number) >= 999_950:
        return f"{number / 1e6:,.1f} million"
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"


def saved(ratio: float, interval: tuple[float, float] | None = None) -> str:
    """Format a ratio of costs as what is saved: `66 % saved (58 to 72)`, `50 % more`, `8.9×`."""
    low, high = interval or (ratio, ratio)
    if ratio >= _TIMES:
        told, ends = f"{ratio:.3g}×", between(low, high, ".3g")
    elif ratio <= 1:
        told, ends = f"{100 * (1 - ratio):.0f} % saved", between(100 * (1 - high), 100 * (1 - low), ".0f")
    else:
        told, ends = f"{100 * (ratio - 1):.0f} % more", between(100 * (low - 1), 100 * (high - 1), ".0f")
    return told + ends if interval else told


def answers_drawn(num_drawn: float, most: float, tokens: float = 0.0, tokens_of_all: float = 0.0) -> str:
    """Format the answers that votes drew of those that they may: `3 of 16 answers, 67 % saved`.

    Args:
        tokens: Decoded tokens of the votes.
        tokens_of_all: Decoded tokens that all answers would have taken; 0 if they are not counted.
    """
    told = f"{num_drawn:.3g} of {most:.3g} answers"
    return told if num_drawn >= most or not tokens_of_all else f"{told}, {saved(tokens / tokens_of_all)}"


def drawn_of(programs: Iterable[Program]) -> str:
    """Say what the votes of these requests drew and saved; empty if none of them is a vote."""
    votes = [(drawn, each.ledger) for each in programs if (drawn := drawn_by(each.trace)) is not None]
    if not votes:
        return ""
    num, most = (sum(numbers) for numbers in zip(*(drawn for drawn, _ in votes), strict=True))
    of_all = sum(drawn.tokens_of_all(ledger.num_kept) for drawn, ledger in votes)
    return answers_drawn(num, most, sum(ledger.num_decoded for _, ledger in votes), of_all)
