"""A circuit that opens when a server keeps failing, so that requests fail at once instead of queueing up for it."""

from __future__ import annotations

from collections.abc import Callable

from scaffolding_ext.errors import EngineError


class Circuit:
    """Opens after some failures in a row, and after a pause lets one request through.

    If that request succeeds, the circuit closes. If it fails, the next pause begins.

    Args:
        threshold: Failures in a row that open it.
        pause_seconds: How long it stays open until a request is let through.
        clock: Seconds from any origin, monotonic.
    """

    def __init__(self, threshold: int, pause_seconds: float, clock: Callable[[], float]) -> None:
        self._threshold = threshold
        self._pause = pause_seconds
        self._clock = clock
        self._num_failures = 0
        self._reason = ""
        self._next_try = 0.0

    @property
    def is_open(self) -> bool:
        """Whether requests are refused (except one request after each pause)."""
        return self._num_failures >= self._threshold

    def check(self) -> None:
        """Call before each request.

        Raises:
            EngineError: The circuit is open.
        """
        if not self.is_open:
            return
        now = self._clock()
        if now < self._next_try:
            raise EngineError(
                f"the server has failed {self._num_failures} times in a row, so the worker sends it nothing for "
                f"{self._next_try - now:.0f} s more: see why it fails. Its last failure: {self._reason}"
            )
        self._next_try = now + self._pause  # this request tries the server; the others wait for its result

    def succeeded(self) -> None:
        """A request was answered, perhaps by a refusal: the server works."""
        self._num_failures = 0

    def failed(self, reason: str) -> None:
        """A request failed through the server's fault."""
        self._num_failures += 1
        self._reason = reason
        self._next_try = self._clock() + self._pause
