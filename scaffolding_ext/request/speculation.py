"""Parts of a request that may never count, such as samples that a vote starts and then does not need.

What such a part records, publishes and observes is held until the vote counts it.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable


class Speculation:
    """State of a part that may never count.

    Args:
        moved: Called when the part has a new position; None if nobody waits for positions.

    Attributes:
        position: A number of tokens that the part has written and keeps; it only grows. It depends on the part's
            tokens, never on time: the last one is the same in each run of a seed.
    """

    __slots__ = ("_held", "_moved", "position")

    def __init__(self, moved: Callable[[], object] | None = None) -> None:
        self.position = 0
        self._moved = moved
        self._held: list[Callable[[], object]] = []

    @property
    def is_paced(self) -> bool:
        return self._moved is not None

    def reach(self, position: int) -> None:
        if self._moved is not None and position > self.position:
            self.position = position
            self._moved()

    def enter(self) -> None:
        """Begin the part: the calling branch of a `ParallelProcess`, with its nested branches."""
        _current.set(self)

    def hold(self, call: Callable[[], object]) -> None:
        self._held.append(call)

    def count(self) -> None:
        """Make the held calls, or pass them to the part that encloses the caller."""
        held, self._held = self._held, []
        for call in held:
            when_counted(call)


_current: contextvars.ContextVar[Speculation | None] = contextvars.ContextVar("speculation", default=None)
current_speculation = _current.get


def when_counted(call: Callable[[], object]) -> None:
    """Call a function now; in a speculative part, once the part counts, and never if it does not."""
    speculation = _current.get()
    if speculation is None:
        call()
    else:
        speculation.hold(call)


def reached(position: int) -> None:
    """Say that a chain of the current part has so many tokens and keeps them."""
    speculation = _current.get()
    if speculation is not None:
        speculation.reach(position)


def is_paced() -> bool:
    """Return True if somebody waits for the positions of the current part."""
    speculation = _current.get()
    return speculation is not None and speculation.is_paced
