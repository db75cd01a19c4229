"""Lets coroutines wait for what the generation engine does on its own thread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scaffolding_ext.workers.engine.sequence import Sequence

NEVER = 1 << 60  # more tokens than any sequence has: waits for its end


class Waiter:
    """Carries word of a sequence's progress from the engine's thread to a coroutine."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] | None = None

    async def wait(self, sequence: Sequence, num_tokens: int) -> None:
        """Until the sequence has that many tokens or has ended; one wait at a time."""
        while not sequence.ended and sequence.num_decoded < num_tokens:
            self._future = self._loop.create_future()
            sequence.wanted = num_tokens
            if not sequence.ended and sequence.num_decoded < num_tokens:  # else the engine may have looked before
                await self._future  # word of an earlier wish may still be under way and end this one too soon

    def notify(self, sequence: Sequence) -> None:
        """For the engine: the sequence has what was wanted, or has ended; from any thread."""
        sequence.wanted = NEVER
        try:
            self._loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:  # the loop is closed, so nobody waits
            return

    def _resolve(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)
