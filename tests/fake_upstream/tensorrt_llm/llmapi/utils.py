"""Queues between the engine's thread and whoever reads a result.

A result made on an event loop is read on that loop. The engine's thread puts a whole batch of responses and then wakes
all readers at once, on the loop of the first of them: the source takes it that there is only one.
"""

import asyncio
import collections


class EventLoopShutdownError(Exception):
    """The loop of a batch's first reader no longer runs."""


class AsyncQueue:
    def __init__(self):
        self.loop = asyncio.get_running_loop()
        self._items = collections.deque()
        self._event = asyncio.Event()

    def put_nowait(self, item):
        """From any thread; the reader sees nothing of it before `notify`."""
        self._items.append(item)

    def notify(self):
        self._event.set()

    async def get(self):
        while True:
            await self._event.wait()
            if self._items:
                break
            self._event.clear()
        item = self._items.popleft()
        if not self._items:
            self._event.clear()
        return item


def notify_many(loop, queues):
    if not loop.is_running():
        raise EventLoopShutdownError
    loop.call_soon_threadsafe(lambda: [queue.notify() for queue in queues])
