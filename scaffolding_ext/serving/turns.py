"""Reads the large bodies of one key one after the other, so that they hold up no other key's requests."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from scaffolding_ext.serving.refusals import wait_and_retry

LARGE = 1 << 11  # bytes; a smaller body is read at once, within about 1 ms
_MOST_WAITING = 1 << 26  # bytes of one key
_MOST_PER_SECOND = 1 << 25  # bytes of one key; receiving them takes the loop's time
_REST = 4  # parsing holds the GIL, so the key's next body waits for this many times the CPU time of it


async def at_once(parse: Callable[[], Any]) -> Any:
    """Parse a small body on the loop."""
    return parse()


class Turns:
    """The turns in which the large bodies of each key are read."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._waiting: Counter[str] = Counter()  # bytes

    @contextlib.asynccontextmanager
    async def turn(self, holder: str, num_bytes: int) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
        """Wait for the holder's turn to read a body; the block gets a function that parses it on a thread.

        Raises:
            ApiError: Too many bodies of this key wait already.
        """
        if self._waiting[holder] and self._waiting[holder] + num_bytes > _MOST_WAITING:
            raise wait_and_retry("too many large requests of this key wait to be read", "too_many_requests", 1)
        busy = 0.0

        def timed(parse: Callable[[], Any]) -> Any:
            nonlocal busy
            began = time.thread_time()
            try:
                return parse()
            finally:
                busy = time.thread_time() - began

        lock = self._locks[holder]
        self._waiting[holder] += num_bytes
        try:
            await lock.acquire()
        finally:
            self._waiting[holder] -= num_bytes
        try:
            yield lambda parse: asyncio.to_thread(timed, parse)
        finally:
            asyncio.get_running_loop().call_later(_REST * busy + num_bytes / _MOST_PER_SECOND, lock.release)
