"""Parts of a request, such as the samples of a vote: each has a ledger, and some may never count.

A vote in flight starts samples that it may not need. What such a part records, publishes and observes is held until the
vote counts it.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable

from scaffolding_ext.protocol.relay import Visit
from scaffolding_ext.request.ledger import Ledger


class Part:
    """A part of a request.

    Args:
        look: Called with each step of the part on its way to the host; inner parts first.

    Attributes:
        ledger: Also counts the part's tokens.
        may_be_dropped: True if the part may never count; then it holds what it says.
        moved: Called when the part has a new position; None if nobody waits for positions.
        position: A number of tokens that the part has written and keeps; it only grows. It depends on the part's
            tokens, never on time: the last one is the same in each run of a seed.
    """

    def __init__(self, look: Visit | None = None) -> None:
        self.ledger = Ledger()
        self.look = look
        self.may_be_dropped = False
        self.moved: Callable[[], object] | None = None
        self.position = 0
        self._held: list[Callable[[], object]] = []

    def enter(self) -> None:
        """Begin the part: the calling branch of a `ParallelProcess`, with its nested branches."""
        _parts.set((*_parts.get(), self))

    def reach(self, position: int) -> None:
        if self.moved is not None and position > self.position:
            self.position = position
            self.moved()

    def hold(self, call: Callable[[], object]) -> None:
        self._held.append(call)

    def count(self) -> None:
        """Make the held calls, or pass them to the part that encloses the caller."""
        held, self._held = self._held, []
        for call in held:
            on_count(call)


_parts: contextvars.ContextVar[tuple[Part, ...]] = contextvars.ContextVar("parts", default=())
current_parts = _parts.get  # that enclose the calling context, from the outermost one inwards


def _droppable() -> Part | None:
    for part in reversed(_parts.get()):
        if part.may_be_dropped:
            return part
    return None


def on_count(call: Callable[[], object]) -> None:
    """Call a function now; in a part that may be dropped, once the part counts, and never if it does not."""
    part = _droppable()
    if part is None:
        call()
    else:
        part.hold(call)


def reached(position: int) -> None:
    """Say that a chain of the current part has so many tokens and keeps them."""
    part = _droppable()
    if part is not None:
        part.reach(position)


def is_paced() -> bool:
    """Return True if somebody waits for the positions of the current part."""
    part = _droppable()
    return part is not None and part.moved is not None
