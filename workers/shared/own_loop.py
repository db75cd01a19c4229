"""Event loop on a separate thread, for a client or engine that is bound to one loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from scaffolding_ext.errors import EngineError, check_process

T = TypeVar("T")
_CLOSE_SECONDS = 10.0  # a caller's wait for the thread


class OwnLoop:
    """Runs coroutines for callers on any loop or on none.

    Args:
        name: Name of the thread.
        closed: Message of the EngineError for work after `close` or ended by it.

    Attributes:
        loop: The event loop.
    """

    def __init__(self, name: str, closed: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._message = closed
        self._made_in = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def num_tasks(self) -> int:
        """Coroutines that run or wait on the loop."""
        return 0 if self.loop.is_closed() else len(asyncio.all_tasks(self.loop))

    async def run(self, work: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Await `work(*args)` on this loop, in the caller's context; cancelling the wait cancels the work.

        Raises:
            EngineError: The loop is closed.
        """
        value, error = await asyncio.wrap_future(self._submit(work, *args))
        if error is not None:
            raise error
        return cast("T", value)

    def run_blocking(self, work: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Do the same for a caller without a loop.

        Raises:
            EngineError: The loop is closed.
        """
        value, error = self._submit(work, *args).result()
        if error is not None:
            raise error
        return cast("T", value)

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """End all work with an EngineError, then end the thread; may be called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            asyncio.run_coroutine_threadsafe(self._end(), self.loop)
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)

    def _submit(self, work: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        check_process(self._made_in, "worker")
        with self._lock:  # the loop must not close between check and submission
            if self._closed:
                raise EngineError(self._message)
            return asyncio.run_coroutine_threadsafe(self._ended(work, *args), self.loop)

    async def _ended(self, work: Callable[..., Awaitable[T]], *args: Any) -> tuple[T | None, Exception | None]:
        """Return a value or an error: asyncio would log one that is raised after its caller has gone."""
        try:
            return await work(*args), None
        except asyncio.CancelledError:
            if self._closed:
                return None, EngineError(self._message)
            raise
        except Exception as error:
            return None, error

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    async def finish(self) -> None:
        """Hook for subclasses: close resources of the loop after all work has ended."""

    async def _end(self) -> None:
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self.finish()
        await self.loop.shutdown_asyncgens()
        await self.loop.shutdown_default_executor()
        self.loop.stop()
