"""Lets coroutines wait for what the generation engine does on its own thread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from scaffolding_ext.workers.streaming import NEVER

if TYPE_CHECKING:
    from scaffolding_ext.workers.huggingface.engine_request import EngineRequest


class Waiter:
    """Carries word of a request's progress from the engine's thread to a coroutine."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] | None = None

    async def wait(self, request: EngineRequest, num_tokens: int) -> None:
        """Until the request has that many tokens or has ended; one wait at a time."""
        while not request.ended and request.num_decoded < num_tokens:
            self._future = self._loop.create_future()
            request.wanted, request.awaited = num_tokens, True
            if not request.ended and request.num_decoded < num_tokens:  # else the engine may have looked before
                await self._future  # word of an earlier wish may still be under way and end this one too soon
        request.awaited = False

    def notify(self, request: EngineRequest) -> None:
        """For the engine: the request has what was wanted, or has ended; from any thread."""
        request.wanted, request.awaited = NEVER, False
        try:
            self._loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:  # the loop is closed, so nobody waits
            return

    def _resolve(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)
