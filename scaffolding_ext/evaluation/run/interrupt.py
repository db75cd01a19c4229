"""Signals end a run in good order: the first lets what is in flight end, the second does not wait for it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any


class Interrupts:
    """Hears SIGINT and SIGTERM while a run goes on. Where no handler can be set (not the main thread), it hears none.

    Args:
        say: Called when the first one is heard.

    Attributes:
        signal: The first that was heard, or None.
    """

    def __init__(self, say: Callable[[], object]) -> None:
        self.signal: int | None = None
        self._say = say

    def is_stopped(self) -> bool:
        """Whether nothing new is to be begun."""
        return self.signal is not None

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the work, which looks at `is_stopped`, to its end; a second signal cancels it."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)

        def hear(number: int) -> None:
            if self.signal is not None:
                task.cancel()
                return
            self.signal = number
            self._say()

        heard = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
        for number in heard:
            loop.add_signal_handler(number, hear, number)
        try:
            await task
        except asyncio.CancelledError:
            if self.signal is None:
                raise
        finally:
            for number in heard:
                loop.remove_signal_handler(number)
