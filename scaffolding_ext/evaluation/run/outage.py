"""Wait for a server that is down, so that its restart costs a run time and no samples."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from scaffolding_ext.errors import ServerDownError
from scaffolding_ext.evaluation.run.records import Record

_PAUSE_SECONDS = 5.0  # between attempts
_MOST_TRIES = 3  # of a job at which the server breaks off


class Outage:
    """Runs jobs again that failed because a server was down or broke off.

    One job at a time asks for the server; the others wait. If it does not come back in time, or the run is to stop, the
    run has `given_up`, and these jobs have no records. A job that fails each time while the server is up has failed.

    Args:
        limit: Seconds to wait for the server; 0 records such jobs as failed at once.
        say: Tells the user that the run waits.
        is_up: Asks the servers; True if all answer.
        is_stopped: Ends the wait, since no request in flight can finish.
        clock: Monotonic seconds.
        sleep: Waits for some seconds.
    """

    def __init__(
        self,
        limit: float,
        say: Callable[[str], object],
        is_up: Callable[[], Awaitable[bool]],
        is_stopped: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._limit, self._say, self._is_up, self._is_stopped = limit, say, is_up, is_stopped
        self._clock, self._sleep = clock, sleep
        self._lock: asyncio.Lock | None = None  # made on the run's event loop
        self.given_up = False

    async def through(self, run: Callable[[], Awaitable[Record]]) -> Record | None:
        """Run a job; None if its server was down and did not come back."""
        self._lock = self._lock or asyncio.Lock()
        record = await run()
        for _ in range(_MOST_TRIES - 1):
            if not self._limit or record.error is None or record.error.type != ServerDownError.__name__:
                break
            async with self._lock:
                await self._wait_for_the_server(record.error.message)
            if self.given_up:
                return None
            record = await run()
        return record

    async def _wait_for_the_server(self, reason: str) -> None:
        if await self._is_up():
            await self._sleep(_PAUSE_SECONDS)  # it broke off, or has just come back
            return
        since = self._clock()
        self._say(f"a server is down; waiting up to {self._limit:g} s for it: {reason}")
        while not self.given_up:
            await self._sleep(_PAUSE_SECONDS)
            if await self._is_up():
                self._say(f"the server is back after {self._clock() - since:.0f} s")
                return
            self.given_up = self._is_stopped() or self._clock() - since > self._limit
