"""The time of a request: when it began, when its answer is wanted, and what happens at its end."""

from __future__ import annotations

from collections.abc import Callable


class Lifetime:
    """The time from a request's submission to its end.

    Args:
        clock: Seconds from any origin, monotonic.

    Attributes:
        clock: As given.
        began: When the request was submitted, by the clock; under a foreign host, when its controller began.
        deadline: When its caller wants the answer, by the clock; None where the caller did not say. A request that
            takes longer goes on.
    """

    __slots__ = ("_at_end", "began", "clock", "deadline")

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.began = clock()
        self.deadline: float | None = None
        self._at_end: tuple[Callable[[], object], ...] = ()

    def elapsed(self) -> float:
        """Seconds since the request began, to the microsecond."""
        return round(self.clock() - self.began, 6)

    def at_end(self, call: Callable[[], object]) -> None:
        """Have a function called when the request has ended, well or not; under hosts without scopes, too."""
        self._at_end += (call,)

    def end(self) -> None:
        """For hosts: the request has ended. The functions are called in the order in which they came, once."""
        calls, self._at_end = self._at_end, ()
        for call in calls:
            call()
