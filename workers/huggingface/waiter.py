"""Lets coroutines wait for what the generation engine does on its own thread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from scaffolding_ext.workers.shared.streaming import NEVER

if TYPE_CHECKING:
    from scaffolding_ext.workers.huggingface.engine_request import EngineRequest


class Waiter:
    """Tells a coroutine about a request's progress on the engine's thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] | None = None

    async def wait(self, request: EngineRequest, num_tokens: int) -> None:
        """Wait until the request has that many tokens or has ended; only one wait at a time."""
        while not request.ended and request.num_decoded < num_tokens:
            self._future = self._loop.create_future()
            request.wanted, request.awaited = num_tokens, True
            if not request.ended and request.num_decoded < num_tokens:  # otherwise the engine may have checked before
                await self._future  # a late notice for an earlier wait may end this wait too soon
        request.awaited = False

    def notify(self, request: EngineRequest) -> None:
        """The engine calls this when the request has the wanted tokens or has ended; from any thread."""
        request.wanted, request.awaited = NEVER, False
        try:
            self._loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:  # the loop is closed, so no coroutine waits
            return

    def _resolve(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)
