"""Wait for a server that is down, so that its restart costs a run time and no samples."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from scaffolding_ext.errors import ServerDownError
from scaffolding_ext.evaluation.run.records import Record

_PAUSE_SECONDS = 5.0  # between attempts
_MOST_RETURNS = 3  # of a server, after which a job that brings it down again has failed


class Outage:
    """Runs jobs again that failed because a server was down.

    While it is down, one job at a time is tried; the others wait. If it does not come back in time, the run has
    `given_up`, and these jobs have no records.

    Args:
        limit: Seconds to wait for the server; 0 records such jobs as failed.
        say: Tells the user that the run waits.
        clock: Monotonic seconds.
        sleep: Waits for some seconds.
    """

    def __init__(
        self,
        limit: float,
        say: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._limit, self._say, self._clock, self._sleep = limit, say, clock, sleep
        self._lock: asyncio.Lock | None = None  # made on the run's event loop
        self._num_returns = 0
        self._since: float | None = None
        self.given_up = False

    async def through(self, run: Callable[[], Awaitable[Record]]) -> Record | None:
        """Run a job; None if its server was down and did not come back."""
        self._lock = self._lock or asyncio.Lock()
        num_returns, num_tries = self._num_returns, 0
        record = await run()
        while self._limit and _is_down(record):
            async with self._lock:  # the waiting jobs take turns
                if self.given_up:
                    return None
                if self._num_returns == num_returns:
                    record = await self._tried(run, record)
                    continue
            num_tries += 1
            if num_tries == _MOST_RETURNS:
                break
            num_returns = self._num_returns
            record = await run()
        if not _is_down(record):
            self._came_back()
        return record

    async def _tried(self, run: Callable[[], Awaitable[Record]], record: Record) -> Record:
        """Try a job after a pause."""
        if self._since is None:
            self._since = self._clock()
            reason = "" if record.error is None else record.error.message
            self._say(f"a server is down; waiting up to {self._limit:g} s for it: {reason}")
        await self._sleep(_PAUSE_SECONDS)
        record = await run()
        if _is_down(record) and self._since is not None:
            self.given_up = self._clock() - self._since > self._limit
        return record

    def _came_back(self) -> None:
        """End the wait, since a job is through."""
        if self._since is not None:
            self._num_returns += 1
            self._say(f"the server is back after {self._clock() - self._since:.0f} s")
            self._since = None


def _is_down(record: Record) -> bool:
    return record.error is not None and record.error.type == ServerDownError.__name__
