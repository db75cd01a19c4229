"""Thinking budgets that a server keeps itself: what it is asked for, and whether it is to be relied on."""

from __future__ import annotations

from typing import NamedTuple


class ThinkingBudget(NamedTuple):
    """What a server is asked for with a generation.

    Attributes:
        max_tokens: Tokens of thinking, after which it is to be closed.
        open: What opens thinking.
        close: What closes it.
        is_open: Whether the prompt ends in `open`, and white space perhaps.
    """

    max_tokens: int
    open: str
    close: str
    is_open: bool


class ServerBudget:
    """What is known of the thinking budget of a worker's server; whoever sees it ignored says so here.

    Attributes:
        reason: Why it is not relied on; None while it is.
    """

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason
